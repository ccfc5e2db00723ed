"""decode_sizes: programs that generate, for the numbers of tokens that a session calls.

Before, captured at 1 row of 1031 tokens (a prime that marks sizes, see ``ir.lengths``)::

    embedding(tokens (1, 1031)) -> hidden (1, 1031, 64)
    layer.0(hidden (1, 1031, 64), shared.0 (1, 1, 1031, 16), cache.0, cache.1, position) -> hidden, cache.0, cache.1
    head(hidden (1, 1031, 64)) -> logits (1, 1031, 320)

After, for 1 and 32 tokens::

    layer.0@1(hidden (1, 1, 64), shared.0 (1, 1, 1, 16), cache.0, cache.1, position) -> ...
    layer.0@32(hidden (1, 32, 64), shared.0 (1, 1, 32, 16), cache.0, cache.1, position) -> ...
    head(hidden (1, 64)) -> logits (1, 320)

A table over positions, as of rotary embeddings, is an input of the role ``table``: its rows of the tokens at hand, from
the first one's position on. The output head sees the last token alone. Refused: a table whose positions are not its
first axis that counts, as its rows then lie apart.
"""

from __future__ import annotations

import dataclasses

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program
from zoexport.ir.graphs import copy_program
from zoexport.ir.lengths import position_axes, set_length
from zoexport.ir.shapes import record_shapes
from zoexport.passes.choose_sizes import rows_alone
from zoexport.passes.split_layers import HEAD


def decode_sizes(graph: LayerGraph, lengths: list[int]) -> LayerGraph:
    """Replace each program of a split graph for rows of one sequence by its sized ones.

    Args:
        lengths: tokens in one call, ascending.
    """
    programs: dict[str, Program] = {}
    for family, program in graph.programs.items():
        if family == HEAD:
            programs[family] = made = copy_program(program, family)
            rows_alone(made, 1)
            continue
        tables_as_rows(program, graph.length)
        for length in lengths:
            made = copy_program(program, f"{family}@{length}")
            set_length(made, graph.length, length)
            programs[made.name] = dataclasses.replace(made, length=length)
    for program in programs.values():
        record_shapes(program)
    graph.programs = programs
    graph.length = lengths[-1]
    graph.lengths, graph.label_rows, graph.max_labels = list(lengths), 1, 1
    return graph


def tables_as_rows(program: Program, length: int) -> None:
    """Give the constants over positions of a program the role ``table``.

    Raises:
        VerifyError: the rows of one do not lie one after another.
    """
    values = []
    for value in program.inputs:
        axes = position_axes(value, length)
        if axes and (len(axes) > 1 or set(value.sizes()[: axes[0]]) > {1}):
            raise VerifyError(
                f"[decode_sizes] program {program.name}",
                found=f"the constant {value.name} {value.shape}, over positions in other axes than the first",
                expected="tables with a row for each position",
                fix="Report the model's architecture.",
            )
        values.append(dataclasses.replace(value, role="table") if axes else value)
    program.inputs = values
