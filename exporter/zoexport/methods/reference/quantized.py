"""Hugging Face model quantized like a bundle, in plain PyTorch: the reference of parity.

It defines quantization without the passes: every linear layer and embedding of tokens that
``models.quantizable`` does not leave out has the dequantized weight. With
``activations=int8`` every linear layer quantizes its input to int8, one
scale per 32 neighbours, but its adapter reads the original input. A weight that the bundle stores
rotated is quantized after rotation; its layer rotates its input rows, and the embedding its output
rows. With ``compute=bf16`` the linear layers of the decoder layers round the operands of their
products to bfloat16, also in gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import hadamard, int4
from zoexport.ir.product_ops import ROUNDED_GROUP, as_bf16, rounded_rows
from zoexport.models.experts import fused_weights, is_routed
from zoexport.models.quantizable import unquantized
from zoexport.models.targets import decoder_stack


def quantize_model(
    model: Any,
    settings: dict[str, Any],
    rotated: Collection[str] = (),
    known: Mapping[str, Tensor] | None = None,
) -> None:
    """Change ``model`` in place to compute as a bundle with these settings does.

    Args:
        model: transformers causal language model, fp32.
        settings: ``weights``, ``activations`` and ``group_size`` of the bundle's manifest.
        rotated: names of the parameters that the bundle stores rotated (``core.hadamard``).
        known: ``<parameter>.codes`` and ``<parameter>.scales`` of weights that are already
            quantized.
    """
    if settings["weights"] == "fp32":
        return
    known = known or {}
    named = model.named_parameters(remove_duplicate=False)
    names = {value.data_ptr(): name for name, value in named if f"{name}.codes" in known}
    for place, (weight, turns) in stored_weights(model, settings["weights"], rotated).items():
        name = names.get(place)
        weight.copy_(
            rounded(hadamard.rotate_rows(weight) if turns else weight, settings)
            if name is None
            else dequantized(known[f"{name}.codes"], known[f"{name}.scales"])
        )
    read_as_bundle(model, settings, rotated)


def read_as_bundle(model: Any, settings: Mapping[str, Any], rotated: Collection[str] = ()) -> None:
    """Make layers rotate and quantize their inputs as a bundle with these settings does.

    Keep the weights.

    Args:
        model, settings, rotated: see :func:`quantize_model`.
    """
    named = model.named_parameters(remove_duplicate=False)
    turned = {id(parameter) for name, parameter in named if name in rotated}
    if settings.get("compute") == "bf16":
        _multiply_bf16(model, settings["weights"])
    # The NPU's own ranges are not modeled: their effect is within the bounds of parity.
    rounds = settings["activations"] == "int8" and settings.get("compute") != "fp16"
    round_ = _rounded if rounds else _leave
    for layer in _quantized(model, settings["weights"]):
        turn = hadamard.rotate_rows if id(layer.weight) in turned else _leave
        if isinstance(layer, nn.Embedding):
            layer.register_forward_hook(lambda _, __, rows, turn=turn: turn(rows))
        else:
            # Not a hook: the hooks of adapters would see the changed input.
            layer.forward = _reading(layer.forward, turn, round_)


def _multiply_bf16(model: Any, weights: str) -> None:
    of_text = set(_quantized(model, weights))
    named: dict[str, Any] = {
        name: layer
        for name, layer in model.named_modules()
        if layer in of_text and isinstance(layer, nn.Linear)
    }
    stack, _ = decoder_stack(model, list(named))
    for name, layer in named.items():
        if name.startswith(stack):
            layer.forward = functools.partial(_linear_bf16, layer)


def _linear_bf16(layer: nn.Linear, x: Tensor) -> Tensor:
    product: Tensor = _ProductBf16.apply(x, layer.weight)  # type: ignore[no-untyped-call]  # torch's own
    return product if layer.bias is None else product + layer.bias


class _ProductBf16(torch.autograd.Function):
    """Product x W^T, and dy W in the backward pass, with operands rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return as_bf16(x) @ as_bf16(weight).T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return as_bf16(dy) @ as_bf16(weight), None


def stored_weights(
    model: Any, weights: str, rotated: Collection[str]
) -> dict[int, tuple[Tensor, bool]]:
    """Return the quantized weights by memory address, and whether they are stored rotated."""
    turned = {
        parameter.data_ptr()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name in rotated
    }
    found = [layer.weight.data for layer in _quantized(model, weights)]
    if is_routed(model):
        left = unquantized(model, weights)
        found += [value.data for name, value in fused_weights(model).items() if name not in left]
    return {weight.data_ptr(): (weight, weight.data_ptr() in turned) for weight in found}


def _quantized(model: Any, weights: str) -> list[Any]:
    """Return the linear layers and embeddings of the language model that bundles quantize.

    Vision and audio encoders are not in bundles.
    """
    config = getattr(model, "config", None)
    others = {type(getattr(config, f"{kind}_config", None)) for kind in ("vision", "audio")}
    others.discard(type(None))
    apart = {
        layer
        for module in model.modules()
        if type(getattr(module, "config", None)) in others
        for layer in module.modules()
    }
    left = unquantized(model, weights)
    return [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
        and f"{path}.weight" not in left
        and module not in apart
    ]


def _reading(
    forward: Callable[[Tensor], Tensor], *changes: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return ``forward`` with ``changes`` applied to its input."""

    def read(x: Tensor) -> Tensor:
        for change in changes:
            x = change(x)
        return forward(x)

    return read


def _rounded(rows: Tensor) -> Tensor:
    return rows if rows.shape[-1] % ROUNDED_GROUP else rounded_rows(rows)


def _leave(rows: Tensor) -> Tensor:
    return rows


def rounded(weight: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Return a weight (..., outputs, inputs), quantized and dequantized as in a bundle."""
    if settings["weights"] == "int4":
        group, steps = settings["group_size"], bool(settings.get("scale_steps"))
        return int4.dequantize_int4(*int4.quantize_int4(weight.detach(), group, steps=steps), group)
    return int4.dequantize_int8(*int4.quantize_int8(weight.detach()))


def dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 rows of an int4 or int8 weight from quantized values and scales."""
    dequantize = int4.dequantize_int8 if codes.dtype == torch.int8 else int4.dequantize_int4
    return dequantize(codes, scales)
