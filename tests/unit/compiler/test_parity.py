"""What parity makes of the errors that it finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zoexport.compiler.parity import state_error, worse


@pytest.mark.parametrize(("a", "b"), [(0.0, math.nan), (math.nan, 0.0), (1.0, math.inf)])
def test_an_error_that_is_no_number_is_the_worst(a: float, b: float) -> None:
    """``max`` would drop it, and a run whose gradients are no numbers would pass."""
    assert worse(a, b) == math.inf


def test_the_largest_error_of_all_tensors() -> None:
    theirs = {"a": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
    ours = {"a": np.full(4, 1.5, np.float32), "b": np.zeros(4, np.float32)}
    assert state_error(ours, theirs) == pytest.approx(0.5)
    ours["b"] = np.full(4, np.nan, np.float32)
    assert state_error(ours, theirs) == math.inf
