"""The program file of a bundle, and what is said where ExecuTorch does not make one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core.errors import LoweringError, first_line

FILE = "model.pte"


def refused(where: str, error: Exception) -> LoweringError:
    """ExecuTorch raises many types; whatever it is, the graph cannot be lowered."""
    return LoweringError(
        where,
        found=f"{type(error).__name__}: {first_line(error)}",
        expected="a graph that ExecuTorch lowers",
        fix="Report the model's architecture and this message.",
    )


def write_programs(executorch: Any, folder: Path) -> list[str]:
    """Write ``folder/model.pte``; the operators that a runtime must have for it, with their overloads."""
    with (folder / FILE).open("wb") as file:
        executorch.write_to_file(file)
    return sorted(
        {
            f"{operator.name}.{operator.overload}"
            for method in executorch.executorch_program.execution_plan
            for operator in method.operators
        }
    )
