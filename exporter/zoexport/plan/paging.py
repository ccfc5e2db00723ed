"""What a step reads from the disk, where memory does not hold the weights that it maps (MeBP, section 3.2).

The system keeps the pages that were used last. A step of a first-order method goes through the layers and back, so that
the ones that it used last are used next, and only what is beyond memory is read again; a step that only goes forward
reads every layer again once one does not fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

StageWeights = tuple[tuple[str, int], ...]
"""Names and bytes of the tensors that a stage reads, in order."""
_PIECE = 1 << 20
"""Bytes that are kept or dropped together here; a page is 4 to 16 kB."""


def bytes_from_disk(runs: Iterable[int], weights: Sequence[StageWeights], room: int) -> int:
    """Bytes that a step reads of its weights once others like it have run.

    Args:
        runs: the numbers of the stages that a step runs, in order.
        weights: of each stage; stages may share tensors.
        room: bytes of memory for them.
    """
    order = list(runs)
    kept: OrderedDict[tuple[str, int], int] = OrderedDict()
    held, missed, dropped = 0, 0, False
    for first in (True, False):
        missed = 0
        last = None
        for stage in order:
            if stage == last and sum(size for _, size in weights[stage]) <= room:
                continue  # still there, all of it
            for name, size in weights[stage]:
                for piece in range(-(-size // _PIECE)):
                    key = name, piece
                    if key in kept:
                        kept.move_to_end(key)
                        continue
                    kept[key] = min(_PIECE, size - piece * _PIECE)
                    missed += kept[key]
                    held += kept[key]
                    while held > max(room, kept[key]):
                        held -= kept.popitem(last=False)[1]
                        dropped = True
            last = stage
        if first and not dropped:
            return 0
    return missed
