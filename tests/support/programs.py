"""Small programs that ExecuTorch runs with the native library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.support.native import load_library

_KEPT: list[Any] = []  # a method reads its program's buffer, and does not keep it alive


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same for the same arguments."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float32 tensors have the same bits."""
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def lower(
    function: Callable[..., Any],
    arguments: tuple[torch.Tensor, ...],
    dynamic: Sequence[dict[int, Any]] | None = None,
) -> Any:
    """A loaded ExecuTorch method of ``function``."""
    load_library()
    from executorch.exir import to_edge
    from executorch.runtime import Runtime

    class Program(torch.nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return function(*inputs)

    shapes = None if dynamic is None else (tuple(dynamic),)
    exported = torch.export.export(Program(), arguments, strict=False, dynamic_shapes=shapes)
    buffer = to_edge(exported).to_executorch().buffer
    program = Runtime.get().load_program(buffer)
    method = program.load_method("forward")
    assert method is not None
    _KEPT.append((buffer, program))
    return method


def refuses(call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Assert that the native operator fails on these arguments; the process lives on and the next call works."""
    tensors = tuple(a for a in arguments if isinstance(a, torch.Tensor))

    def program(*inputs: torch.Tensor) -> Any:
        remaining = list(inputs)
        return call(*[remaining.pop(0) if isinstance(a, torch.Tensor) else a for a in arguments])

    method = lower(program, tensors)
    with pytest.raises(RuntimeError):
        method.execute(tensors)
