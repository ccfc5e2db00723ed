"""htp_broadcasts: values that an operator broadcasts are repeated first.

Before, with one row of a batch read by both of its perturbed copies, and learned positions read by all rows::

    y = add(n (1, 32, 96), d (2, 32, 96))
    h = add(e (4, 24, 64), positions (1, 24, 64))

After::

    y = add(repeat(n, [2, 1, 1]), d)
    h = add(e, repeat(positions, [4, 1, 1]))

From its second repetition on the HTP (QNN 2.51) may read zeros in place of a value that it broadcasts. The smallest
programs that show it are ``rms_norm(x) (1, 32, 96) + bmm(h, B) (2, 32, 96)``, also with a linear layer after the norm,
and ``layer_norm(e + positions)``, whose sum alone is right. It depends on sizes: two to four copies of 32 or 64 tokens
are wrong, eight copies, or 8 tokens, are right. Left alone: constants of four dimensions (masks and rotary tables, for
which it was never seen), and values that are broadcast along their last dimension alone, such as the scale of each row
in a norm.
"""

from __future__ import annotations

from torch.fx import Node

from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, call, constant_nodes, is_call, shape_of

_ELEMENTWISE = (
    aten.add,
    aten.sub,
    aten.mul,
    aten.div,
    aten.maximum,
    aten.minimum,
    aten.pow,
    aten.where,
    aten.masked_fill,
)
_ROWS = 3
"""Dimensions of rows of tokens."""


def repeat_broadcasts(program: Program) -> None:
    """Rewrite a program, whose recorded shapes are numbers."""
    constant = constant_nodes(program, {value.name for value in program.weights()})
    repeated: dict[tuple[Node, tuple[int, ...]], Node] = {}
    for node in list(program.module.graph.nodes):
        if not is_call(node, *_ELEMENTWISE):
            continue
        for arg in node.all_input_nodes:
            times = _times(shape_of(arg), shape_of(node))
            table = arg in constant and len(times) > _ROWS
            if table or all(count == 1 for count in times):
                continue
            if (arg, times) not in repeated:
                with program.module.graph.inserting_after(arg):
                    repeated[arg, times] = call(
                        program.module.graph, aten.repeat.default, arg, [*times]
                    )
            node.replace_input_with(arg, repeated[arg, times])


def _times(have: tuple[int, ...], want: tuple[int, ...]) -> tuple[int, ...]:
    """Return the repeats of each dimension; the last one and scalars are not repeated."""
    if len(have) < 2:
        return ()
    have = (1,) * (len(want) - len(have)) + have
    return (*(size // own for own, size in zip(have[:-1], want[:-1], strict=True)), 1)
