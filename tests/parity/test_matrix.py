"""Every method on every target that has what it needs: compiled, and compared with the method's reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.matrix import CELLS, problem_of
from tests.support.qnn import needs_qnn
from zoexport.core.errors import ConfigError

pytestmark = pytest.mark.parity

SETTINGS = {"batch_size": 2}
WEIGHTS = {"quzo": "int4"}
VERIFIED_HERE = ("host", "ios-mlx")
QUICK = ("ios-mlx", "android-gpu")
"""Targets of which each method's first form is in the first tier, beside all that host runs and what is refused."""
QUICK_CELL = ("prge", {"granularity": "layer"})
"""What is of every target."""
LAYERS_ALONE = ("host", "android-gpu")
"""Targets whose programs are of layers where nothing is said."""


def marks(method: str, target: str, settings: dict[str, str]) -> list[pytest.MarkDecorator]:
    """Of a cell."""
    first = target in QUICK and not settings
    quick = target == "host" or first or (method, settings) == QUICK_CELL
    refused = problem_of(method, target, settings) is not None
    return [
        *([needs_qnn] if target == "android-npu" else []),
        *([] if quick or refused else [pytest.mark.slow]),
    ]


@pytest.mark.parametrize(
    ("method", "target", "settings"),
    [
        pytest.param(*cell, marks=marks(*cell))
        for cell in CELLS
        # The same programs as host's, and as those of the form before.
        if cell[1] != "android-cpu"
        and not (cell[2] == {"granularity": "layer"} and cell[1] in LAYERS_ALONE)
    ],
)
def test_a_cell_runs_or_is_refused(
    compiler: Compiler, method: str, target: str, settings: dict[str, str]
) -> None:
    given = {**SETTINGS, **settings}
    given |= {"weights": WEIGHTS[method]} if method in WEIGHTS else {}
    given |= {"num_queries": "1"} if method in ("prge", "mezo", "senszoq", "quzo") else {}
    given |= {"num_queries": "2"} if method == "fzoo" else {}
    given |= {"perturbations": "1,1"} if method == "spzo" else {}
    if problem_of(method, target, settings):
        with pytest.raises(ConfigError, match=f"target {target} has no"):
            compiler.bundle("llama_tied", method, target, **given)
        return
    compiled = compiler.result("llama_tied", method, target, verify=None, **given)
    bundle = Path(compiled["bundle"])
    if target in VERIFIED_HERE:
        assert compiled["verified"]["passed"] is True
        assert compiled["verified"]["loss"] is not None
    if target in ("android-npu", "ios-coreml"):
        assert compiled["verified"]["passed"] is None
    passed(bundle, 1)
