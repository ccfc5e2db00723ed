"""The program file of a bundle, and what is said where ExecuTorch does not make one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core.errors import LoweringError, first_line

FILE = "model.pte"
FALLBACK = "fallback.pte"
GENERATING = "generate.pte"
"""The programs that generate text: whoever does not, loads nothing of them."""


def refused(where: str, error: Exception) -> LoweringError:
    """Return a LoweringError for an exception of any type that ExecuTorch raised."""
    return LoweringError(
        where,
        found=f"{type(error).__name__}: {first_line(error)}",
        expected="a graph that ExecuTorch lowers",
        fix="Report the model's architecture and this message.",
    )


def write_programs(executorch: Any, folder: Path, name: str = FILE) -> tuple[list[str], list[str]]:
    """Write ``folder/name``.

    Returns:
        The operators that a runtime must have for it, with their overloads, and the backends of its delegates.
    """
    with (folder / name).open("wb") as file:
        executorch.write_to_file(file)
    methods = executorch.executorch_program.execution_plan
    operators = {f"{op.name}.{op.overload}" for method in methods for op in method.operators}
    backends = {delegate.id for method in methods for delegate in method.delegates}
    return sorted(operators), sorted(backends)
