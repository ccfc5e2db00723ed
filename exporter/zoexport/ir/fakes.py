"""Fake outputs of calls; calls with the same metadata are computed once.

Layers repeat the calls of the first layer, and a program repeats them at each length. PyTorch takes
a good part of a millisecond for each, which is a tenth of a compilation.
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
    """Cache of values made for calls, keyed by operator and argument metadata.

    Args:
        most: maximum number of entries; the cache is cleared when it is full.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Any, Any] = {}

    def get(self, operator: Any, args: Any, kwargs: dict[str, Any], make: Callable[[], Any]) -> Any:
        """Return the cached value of a call with the same metadata, else the result of ``make``."""
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
    """Return the fake result of ``operator``; tensors are shared by calls of the same shapes.

    Args:
        mode: the fake mode of the tensor arguments.
    """

    def compute() -> Any:
        with mode, torch.no_grad():
            return operator(*args, **kwargs)

    if mode not in _results:
        _results[mode] = Known(_MOST_RESULTS)
    return _results[mode].get(operator, args, kwargs, compute)


class _NotAlikeError(Exception):
    """Raised if the result of a call depends on more than the shapes of its arguments."""


def _described(value: Any) -> Any:
    """Return a hashable cache key of an argument: all metadata that the result depends on."""
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
