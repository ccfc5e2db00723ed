"""Which parameters of a test are in the first tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def slow_after(count: int, values: Sequence[Any]) -> list[Any]:
    """``values`` for ``parametrize``; all but the first ``count`` have the marker ``slow``."""
    return [
        value
        if number < count
        else pytest.param(*value, marks=pytest.mark.slow)
        if isinstance(value, tuple)
        else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]
