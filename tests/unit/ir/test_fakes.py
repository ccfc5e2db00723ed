"""Results of calls that are known: the same as PyTorch's, and of calls that are alike alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from zoexport.ir import fakes
from zoexport.ir.fakes import fake_result
from zoexport.ir.graphs import aten


class _Counted:
    """An operator that counts how often it is asked."""

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.asked = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return self.operator(*args, **kwargs)


def _fakes(mode: FakeTensorMode, *shapes: tuple[int, ...], **kwargs: Any) -> list[torch.Tensor]:
    with mode:
        return [torch.empty(shape, **kwargs) for shape in shapes]


def test_calls_that_are_alike_are_computed_once() -> None:
    mode = FakeTensorMode()
    a, b, wide, whole = (
        *_fakes(mode, (2, 3), (2, 3), (2, 4)),
        *_fakes(mode, (2, 3), dtype=torch.int32),
    )
    add = _Counted(aten.add.Tensor)
    results = [
        fake_result(mode, add, args, kwargs)
        for args, kwargs in (
            ((a, b), {}),
            ((b, a), {}),
            ((a, 1), {}),
            ((a, 1.0), {}),
            ((whole, 1), {}),
            ((whole, 1.0), {}),
            ((whole, True), {}),
            ((wide, wide), {}),
            ((a, b), {"alpha": 2}),
        )
    ]
    assert results[0] is results[1] and add.asked == 8
    assert [result.dtype for result in results[4:7]] == [torch.int32, torch.float32, torch.int32]
    assert results[7].shape == (2, 4)


def test_strides_and_lists_decide_a_result() -> None:
    mode = FakeTensorMode()
    (a,) = _fakes(mode, (4, 4))
    with mode:
        turned = a.t()
    clone = _Counted(aten.clone.default)
    assert fake_result(mode, clone, (a,), {}).stride() == (4, 1)
    assert fake_result(mode, clone, (turned,), {}).stride() == (1, 4) and clone.asked == 2
    assert fake_result(mode, aten.view.default, (a, [2, 8]), {}).shape == (2, 8)
    assert fake_result(mode, aten.view.default, (a, [8, 2]), {}).shape == (8, 2)


def test_values_that_are_known_are_computed_again() -> None:
    """An item of a tensor whose value PyTorch keeps is that value."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        two, three = torch.tensor(2), torch.tensor(3)
    item = _Counted(aten._local_scalar_dense.default)
    assert fake_result(mode, item, (two,), {}) == 2
    assert fake_result(mode, item, (three,), {}) == 3 and item.asked == 2
    real = torch.ones(2)
    add = _Counted(aten.add.Tensor)
    for _ in range(2):
        assert fake_result(mode, add, (real, 1), {}).shape == (2,)
    assert add.asked == 2


def test_sizes_that_are_symbols() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    a = mode.from_tensor(torch.empty(5, 3))
    b = mode.from_tensor(torch.empty(7, 3))
    add = _Counted(aten.add.Tensor)
    first, again, other = (fake_result(mode, add, (x, 1.0), {}) for x in (a, a, b))
    assert isinstance(a.shape[0], torch.SymInt) and first is again and add.asked == 2
    assert str(first.shape) == str(a.shape) != str(b.shape) == str(other.shape)


def test_modes_are_apart_and_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "_MOST_RESULTS", 2)
    add = _Counted(aten.add.Tensor)
    modes = [FakeTensorMode(), FakeTensorMode()]
    for mode in modes:
        (a,) = _fakes(mode, (2, 3))
        assert fake_result(mode, add, (a, 1.0), {}).fake_mode is mode
    assert add.asked == 2
    asked = {2.0: 3, 1.0: 3, 3.0: 4}  # the third one is one too many, and the others are forgotten
    for number, count in (*asked.items(), (1.0, 5)):
        (a,) = _fakes(modes[0], (2, 3))
        fake_result(modes[0], add, (a, number), {})
        assert add.asked == count
