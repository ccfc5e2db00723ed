"""MLX arrays and torch tensors of the same bits, and a rule of the target ios-mlx beside its operator."""

from __future__ import annotations

import tempfile
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from zoexport.targets.mlx.functions import Function
from zoexport.targets.mlx.packing import Packed, pack
from zoexport.targets.mlx.products import of_packed, rules

mx.set_default_device(mx.cpu)
RULES = {**rules(), **of_packed()}


def to_mlx(tensor: torch.Tensor) -> mx.array:
    """An array of the same dtype, shape and bits."""
    if tensor.dtype == torch.bfloat16:
        return mx.array(tensor.contiguous().view(torch.uint16).numpy()).view(mx.bfloat16)
    return mx.array(tensor.numpy())


def to_torch(array: mx.array) -> torch.Tensor:
    """The way back."""
    if array.dtype == mx.bfloat16:
        return torch.tensor(np.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.tensor(np.array(array))


def packed(codes: torch.Tensor, scales: torch.Tensor) -> Packed:
    """A quantized weight as a function reads it."""
    return Packed(
        **{"biases": None, **{key: to_mlx(part) for key, part in pack(codes, scales).items()}}
    )


def named_inputs(function: Function, values: list[torch.Tensor]) -> dict[str, mx.array]:
    """What a function takes for the inputs of its program, in the program's order."""
    found = dict(zip((value.name for value in function.program.inputs), values, strict=True))
    for weight in function.quantized:
        parts = pack(found.pop(f"{weight}.codes"), found.pop(f"{weight}.scales"))
        found |= {f"{weight}.{part}": tensor for part, tensor in parts.items()}
    return {name: to_mlx(tensor) for name, tensor in found.items()}


def case(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """A pytest.param of an overload and its arguments, named after them."""
    named = [_short(arg) for arg in args] + [f"{key}={_short(arg)}" for key, arg in kwargs.items()]
    return pytest.param(operator, args, kwargs, id=f"{operator}({', '.join(named)})")


def _short(argument: Any) -> str:
    if isinstance(argument, list):
        return f"[{', '.join(_short(part) for part in argument)}]"
    if isinstance(argument, torch.Tensor):
        return f"{str(argument.dtype).removeprefix('torch.')}{list(argument.shape)}"
    return str(argument)


def covered(cases: list[Any]) -> set[Any]:
    """The packets of the overloads of several cases."""
    return {case.values[0].overloadpacket for case in cases}


def by_rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a rule makes of an overload's arguments, as tensors."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, to_mlx, (args, kwargs))
    found = RULES[operator.overloadpacket](*args, **kwargs)
    return pytree.tree_map_only(mx.array, to_torch, found)


def by_file(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Likewise, by a function that MLX has written and read; the tensors are its inputs."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    inputs = {
        f"in{place}": leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)
    }

    def function(**arrays: mx.array) -> list[mx.array]:
        given = [arrays.get(f"in{place}", leaf) for place, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(given, form)
        found = RULES[operator.overloadpacket](*args, **kwargs)
        return [*found] if isinstance(found, list | tuple) else [found]

    arrays = {name: to_mlx(tensor) for name, tensor in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        mx.export_function(f"{folder}/rule.mlxfn", function, **arrays)
        found = mx.import_function(f"{folder}/rule.mlxfn")(**arrays)
    return [to_torch(array) for array in found]


def assert_rule(
    operator: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    given: tuple[Any, ...] | None = None,
    rounding: float = 2e-7,
) -> None:
    """A rule, written and read, gives what torch gives: dtypes, shapes, and values within 1e-6.

    Args:
        operator: an overload. args, kwargs: its arguments.
        given: those of the rule, where it takes others.
        rounding: of the greatest number that is added up; a result near zero may differ by it.
    """
    # An operator in place changes its operand.
    copies = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    expected = operator(*copies[0], **copies[1])
    found = by_file(operator, args if given is None else given, kwargs)
    expected = expected if isinstance(expected, list | tuple) else [expected]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-6, atol=rounding, equal_nan=True, check_stride=False
        )
