"""Constants of delegates: each is copied and packed once, however many programs read it.

ExecuTorch copies a delegate's weights before it serializes it, for whatever passes it runs might change them, and packs
int4 codes for each program anew: as many copies of the weights in memory as there are programs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def shared_constants() -> Iterator[None]:
    """While this is open, copies of programs that XNNPACK is given share their tensors, and codes are packed once.

    XNNPACK's passes replace constants and write into none.
    """
    from executorch.backends.xnnpack.operators.node_visitor import NodeVisitor
    from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend

    pack = NodeVisitor.convert_to_qc4w
    packed: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def packed_once(codes: torch.Tensor) -> torch.Tensor:
        key = (codes.data_ptr(), codes.dtype, codes.shape, codes.stride())
        if key not in packed:
            # The codes are kept too, so that no other tensor comes to lie where they are.
            packed[key] = codes, pack(codes)
        return packed[key][1]

    def copied(
        cls: type, program: torch.export.ExportedProgram, compile_specs: Any
    ) -> torch.export.ExportedProgram:
        tensors = (*program.state_dict.values(), *program.constants.values())
        shared = {id(one): one for one in tensors if isinstance(one, torch.Tensor)}
        found: torch.export.ExportedProgram = copy.deepcopy(program, shared)
        return found

    NodeVisitor.convert_to_qc4w = staticmethod(packed_once)
    XnnpackBackend.copy_exported_program_for_preprocess = classmethod(copied)
    try:
        yield
    finally:
        NodeVisitor.convert_to_qc4w = staticmethod(pack)
        del XnnpackBackend.copy_exported_program_for_preprocess
