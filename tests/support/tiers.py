"""Which parameters of a test are in the first tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

ARCHITECTURES = ("llama_tied", "gemma3", "opt", "phi3", "gpt2", "gpt_neox", "bloom")
"""Of the first tier: tied weights, windows, learned positions, joined projections, Conv1D, parallel blocks, biases."""


def slow_after(count: int, values: Sequence[Any]) -> list[Any]:
    """``values`` for ``parametrize``; all but the first ``count`` have the marker ``slow``."""
    return [_as_parameter(value, number < count) for number, value in enumerate(values)]


def slow_unless(quick: Callable[..., bool], values: Sequence[Any]) -> list[Any]:
    """``values`` for ``parametrize``; those of which ``quick`` is not true have the marker ``slow``."""
    return [
        _as_parameter(value, quick(*value) if isinstance(value, tuple) else quick(value))
        for value in values
    ]


def slow_architectures(values: Sequence[Any]) -> list[Any]:
    """``values`` for ``parametrize``, names of tiny models or cases that begin with one."""
    return slow_unless(lambda name, *_: name in ARCHITECTURES, values)


def _as_parameter(value: Any, quick: bool) -> Any:
    marks = () if quick else (pytest.mark.slow,)
    return (
        pytest.param(*value, marks=marks)
        if isinstance(value, tuple)
        else pytest.param(value, marks=marks)
    )
