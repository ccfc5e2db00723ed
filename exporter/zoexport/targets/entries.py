"""Programs as the manifest states them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoexport.core.graph import Program, Value
from zoexport.ir.graphs import identifier


def program_entry(
    program: Program,
    file: str,
    inputs: Sequence[Value] | None = None,
    *,
    lengths: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return the manifest entry of a program, of a whole model or of stages.

    Args:
        program: the lowered program. file: the bundle's file that contains it.
        inputs: inputs from the session; None: all but the weights, which the file contains.
        lengths: minimum and maximum tokens per row, for a program with dynamic length.
    """
    supplied = program.arguments() if inputs is None else inputs
    values = [value.as_dict() for value in supplied]
    if lengths is not None:
        tokens = next(value for value in values if value["role"] == "tokens")
        tokens["shape"][1] = {"name": "length", "min": lengths[0], "max": lengths[1]}
    return {
        "name": program.name,
        **({"family": program.family} if program.family else {}),
        **({} if program.length is None else {"length": program.length}),
        "file": file,
        "entry_point": identifier(program.name),
        "inputs": values,
        "outputs": [value.as_dict() for value in program.outputs],
    }
