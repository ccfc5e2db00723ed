"""Run a model whose weights stay in their files: linear layers, embeddings and routed experts read what they need.

All other weights (norms, biases, convolutions) are read once; scalars stay as they are. Only a few
megabytes of weights and the activations are in memory, also when gradients are computed: the
backward pass reads the weights again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core.graph import RowReader
from zoexport.core.routed import routed_product
from zoexport.core.untouched import untouched_zeros
from zoexport.models.experts import fused_weights, is_routed, routed_experts

_SMALL = 1 << 16
"""Maximum elements of a weight that is read once and kept."""
_PIECE = 1 << 21
"""Elements of a weight in memory at a time."""
_Read = Callable[[int, int], Tensor]


@contextlib.contextmanager
def streaming(model: nn.Module, reader: RowReader) -> Iterator[None]:
    """Make linear layers, embeddings and routed experts read their weights when they run, inside the context.

    A layer computes in the dtype of its parameters, which may be changed inside (``model.double()`` copies small ones
    only).

    Args:
        model: its parameters may be stand-ins without values; all are restored at the end.
        reader: reader of rows of parameters by their names in the model, float32.

    Raises:
        ModelError: a weight's file can no longer be read.
    """
    kept = {name: value.data for name, value in model.named_parameters()}
    shapes = {id(value): tuple(value.shape) for value in model.parameters()}
    handles: list[Any] = []
    layers: list[Any] = []
    streamed: set[int] = set()
    for path, module in model.named_modules():
        if type(module).forward is nn.Linear.forward or isinstance(module, nn.Embedding):
            weight: Any = module.weight
            if weight.numel() < _SMALL and id(weight) not in streamed:
                continue
            streamed.add(id(weight))
            weight.data = torch.empty(0)
            read = _rows_of(reader, f"{path}.weight" if path else "weight")
            if isinstance(module, nn.Embedding):
                shape = shapes[id(weight)]
                before = _fill(read, shape)
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(module.register_forward_hook(_empty, always_call=True))
            else:
                module.forward = _product(module, read, shapes[id(weight)])
                layers.append(module)
    products: dict[str, dict[str, Any]] = {}
    for path, weight in (fused_weights(model) if is_routed(model) else {}).items():
        streamed.add(id(weight))
        weight.data = torch.empty(0)
        owner, _, name = path.rpartition(".")
        read, shape = _rows_of(reader, path), shapes[id(weight)]
        products.setdefault(owner, {})[name] = functools.partial(_routed_product, read, shape)
    for path, of_weight in products.items():
        experts: Any = model.get_submodule(path)
        experts.forward = functools.partial(routed_experts, experts, products=of_weight)
        layers.append(experts)
    for name, value in model.named_parameters():
        if value.dim() and value.numel() and id(value) not in streamed:
            value.data = reader.read_rows(name, 0, len(value)).to(value.dtype)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer in layers:
            del layer.forward
        for name, value in model.named_parameters():
            value.data = kept[name]


def _rows_of(reader: RowReader, name: str) -> _Read:
    return lambda begin, end: reader.read_rows(name, begin, end)


def _fill(read: _Read, shape: tuple[int, ...]) -> Callable[..., None]:
    def before(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        values = untouched_zeros(shape, module.weight.dtype)
        (places,) = inputs or named.values()
        for row in places.unique().tolist():
            values[row] = read(row, row + 1)[0]
        module.weight.data = values

    return before


def _empty(module: Any, _: Any, __: Any) -> None:
    module.weight.data = torch.empty(0, dtype=module.weight.dtype)


def _product(layer: Any, read: _Read, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, read, shape)  # type: ignore[no-untyped-call]  # torch's own
        return product if layer.bias is None else product + layer.bias

    return forward


def _routed_product(
    read: _Read, shape: tuple[int, ...], x: Tensor, chosen: Tensor, transposed: bool
) -> Tensor:
    def weight(expert: int) -> Tensor:
        values = read(expert, expert + 1)[0].to(x.dtype)
        return values if transposed else values.T

    width = shape[2 if transposed else 1]
    product: Tensor = _Routed.apply(x, chosen, weight, width, shape[0])  # type: ignore[no-untyped-call]  # torch's own
    return product


class _Routed(torch.autograd.Function):
    """Products with the weights of chosen experts, with one of them in memory at a time."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, chosen: Tensor, weight: Callable[[int], Tensor], width: int, count: int
    ) -> Tensor:
        ctx.shape, ctx.weight, ctx.count = x.shape, weight, count
        ctx.save_for_backward(chosen)
        return routed_product(x.new_empty((*chosen.shape, width)), x, chosen, weight, count)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None, None]:
        (chosen,) = ctx.saved_tensors
        made = dy.new_empty((*chosen.shape, ctx.shape[-1]))
        routed_product(made, dy, chosen, lambda expert: ctx.weight(expert).T, ctx.count)
        dx = made.sum(1, keepdim=True) if ctx.shape[1] == 1 else made
        return dx, None, None, None, None


class _Product(torch.autograd.Function):
    """Product x W^T, and dy W in the backward pass, with few rows of W in memory at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: _Read, shape: tuple[int, ...]) -> Tensor:
        ctx.read, ctx.shape = read, shape
        parts = [x @ read(first, last).to(x.dtype).T for first, last in _pieces(shape)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        parts = (
            dy[..., first:last] @ ctx.read(first, last).to(dy.dtype)
            for first, last in _pieces(ctx.shape)
        )
        total = next(parts)
        for part in parts:
            total = total + part
        return total, None, None


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with about ``_PIECE`` elements."""
    step = max(1, _PIECE // shape[1])
    return ((first, min(first + step, shape[0])) for first in range(0, shape[0], step))
