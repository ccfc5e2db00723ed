"""What calls give for tensors without values; calls that are alike are computed once.

Layers repeat the calls of the first one, and a program repeats them at each length. PyTorch takes a good part of a
millisecond for each, which is a tenth of a compilation.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

_PLAIN = (
    bool,
    int,
    float,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class Known:
    """What was made for calls, of which those that are alike get the same.

    Args:
        most: calls that are kept; more of them are of programs that are long done.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Any, Any] = {}

    def get(self, operator: Any, args: Any, kwargs: dict[str, Any], make: Callable[[], Any]) -> Any:
        """What ``make`` gives for a call, or gave for another one of the same shapes."""
        try:
            key = operator, _described(args), _described(tuple(kwargs.items()))
        except _NotAlikeError:
            return make()
        if key not in self._made:
            if len(self._made) >= self._most:
                self._made.clear()
            self._made[key] = make()
        return self._made[key]


_MOST_RESULTS = 1 << 13
_results: weakref.WeakKeyDictionary[FakeTensorMode, Known] = weakref.WeakKeyDictionary()
"""By mode, whose tensors they are."""


@functools.cache
def static_mode() -> FakeTensorMode:
    """The mode of shapes that are numbers, the same for all programs."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_result(mode: FakeTensorMode, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``operator`` gives, which may be the very tensors that it gave for other tensors of the same shapes.

    Args:
        mode: of the tensors among the arguments.
    """

    def compute() -> Any:
        with mode, torch.no_grad():
            return operator(*args, **kwargs)

    if mode not in _results:
        _results[mode] = Known(_MOST_RESULTS)
    return _results[mode].get(operator, args, kwargs, compute)


class _NotAlikeError(Exception):
    """What a call gives depends on more than its arguments' shapes."""


def _described(value: Any) -> Any:
    """What decides a call's result, of one argument: equal for arguments that are alike, and hashable."""
    if isinstance(value, FakeTensor):
        if value.constant is not None:  # its value is known
            raise _NotAlikeError
        sizes = tuple(map(_size, (*value.shape, *value.stride(), value.storage_offset())))
        return value.dtype, value.fake_device, sizes
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    if isinstance(value, torch.SymInt):
        return _size(value)
    if isinstance(value, _PLAIN):
        return type(value), value  # 1, 1.0 and True are equal
    raise _NotAlikeError


def _size(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
