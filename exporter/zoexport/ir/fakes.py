"""What calls give for tensors without values; calls that are alike are computed once.

Layers repeat the calls of the first one, and a program repeats them at each length. PyTorch takes a good part of a
millisecond for each, which is a tenth of a compilation.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

_MOST_KNOWN = 1 << 13
"""Calls of a mode; more of them are of programs that are long done."""
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

_known: weakref.WeakKeyDictionary[FakeTensorMode, dict[Any, Any]] = weakref.WeakKeyDictionary()


@functools.cache
def static_mode() -> FakeTensorMode:
    """The mode of shapes that are numbers, the same for all programs."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_result(mode: FakeTensorMode, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``operator`` gives, which may be the very tensors that it gave for other tensors of the same shapes.

    Args:
        mode: of the tensors among the arguments.
    """
    try:
        key = operator, described(args), described(tuple(kwargs.items()))
    except NotAlikeError:
        return _computed(mode, operator, args, kwargs)
    known = _known.setdefault(mode, {})
    if key not in known:
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[key] = _computed(mode, operator, args, kwargs)
    return known[key]


def _computed(mode: FakeTensorMode, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    with mode, torch.no_grad():
        return operator(*args, **kwargs)


class NotAlikeError(Exception):
    """What a call gives depends on more than its arguments' shapes."""


def described(value: Any) -> Any:
    """What decides a call's result, of one argument: equal for arguments that are alike, and hashable."""
    if isinstance(value, FakeTensor):
        if value.constant is not None:  # its value is known
            raise NotAlikeError
        sizes = tuple(map(_size, (*value.shape, *value.stride(), value.storage_offset())))
        return value.dtype, value.fake_device, sizes
    if isinstance(value, list | tuple):
        return tuple(map(described, value))
    if isinstance(value, torch.SymInt):
        return _size(value)
    if isinstance(value, _PLAIN):
        return type(value), value  # 1, 1.0 and True are equal
    raise NotAlikeError


def _size(size: int | torch.SymInt) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size
