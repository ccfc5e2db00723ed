"""The Hugging Face model with a bundle's quantization, in plain PyTorch: the other side of parity.

It states what quantization means without the passes: every linear layer and the token embedding have the dequantized
weight. With ``activations=int8`` every linear layer rounds its input to int8, 32 neighbours with one scale, while an
adapter beside it reads the input as it was. A weight that the bundle stores rotated is quantized rotated; its layer
rotates the rows that it reads or, as the embedding, gives out. With ``compute=bf16`` linear layers of the model's
layers multiply numbers that are rounded to bfloat16, and so do their gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import hadamard, int4
from zoexport.ir.product_ops import ROUNDED_GROUP, as_bf16, rounded_rows
from zoexport.models.targets import decoder_stack


def quantize_model(
    model: Any,
    settings: dict[str, Any],
    rotated: Collection[str] = (),
    known: Mapping[str, Tensor] | None = None,
) -> None:
    """Change ``model`` in place to compute as a bundle with these settings does.

    Args:
        model: a transformers causal language model, fp32.
        settings: ``weights``, ``activations`` and ``group_size`` of the bundle's manifest.
        rotated: names of the parameters that the bundle stores rotated (``core.hadamard``).
        known: ``<parameter>.codes`` and ``<parameter>.scales`` of weights that need not be quantized again.
    """
    if settings["weights"] == "fp32":
        return
    known = known or {}
    named = model.named_parameters(remove_duplicate=False)
    names = {value.data_ptr(): name for name, value in named if f"{name}.codes" in known}
    for place, (weight, turns) in stored_weights(model, rotated).items():
        name = names.get(place)
        weight.copy_(
            rounded(hadamard.rotate_rows(weight) if turns else weight, settings)
            if name is None
            else dequantized(known[f"{name}.codes"], known[f"{name}.scales"])
        )
    read_as_bundle(model, settings, rotated)


def read_as_bundle(model: Any, settings: Mapping[str, Any], rotated: Collection[str] = ()) -> None:
    """Make layers turn and round what they read as a bundle with these settings does; weights stay as they are.

    Args:
        model, settings, rotated: see :func:`quantize_model`.
    """
    table = model.get_input_embeddings()
    named = model.named_parameters(remove_duplicate=False)
    turned = {id(parameter) for name, parameter in named if name in rotated}
    if settings.get("compute") == "bf16":
        _multiply_bf16(model)
    # An NPU's own ranges are not the model's: what they do is within the bounds of parity.
    rounds = settings["activations"] == "int8" and settings.get("compute") != "fp16"
    round_ = _rounded if rounds else _leave
    for layer in (*_linears(model), table):
        turn = hadamard.rotate_rows if id(layer.weight) in turned else _leave
        if layer is table:
            layer.register_forward_hook(lambda _, __, rows, turn=turn: turn(rows))
        else:
            # Not a hook: those of adapters would see the changed input.
            layer.forward = _reading(layer.forward, turn, round_)


def _multiply_bf16(model: Any) -> None:
    of_text = set(_linears(model))
    named = {name: layer for name, layer in model.named_modules() if layer in of_text}
    stack, _ = decoder_stack(model, list(named))
    for name, layer in named.items():
        if name.startswith(stack):
            layer.forward = functools.partial(_linear_bf16, layer)


def _linear_bf16(layer: nn.Linear, x: Tensor) -> Tensor:
    product: Tensor = _ProductBf16.apply(x, layer.weight)  # type: ignore[no-untyped-call]  # torch's own
    return product if layer.bias is None else product + layer.bias


class _ProductBf16(torch.autograd.Function):
    """x W^T, and of its gradient dy the product dy W, of numbers rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return as_bf16(x) @ as_bf16(weight).T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return as_bf16(dy) @ as_bf16(weight), None


def stored_weights(model: Any, rotated: Collection[str]) -> dict[int, tuple[Tensor, bool]]:
    """The weights that a bundle quantizes, each once, by place; and whether it stores them rotated."""
    turned = {
        parameter.data_ptr()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if name in rotated
    }
    found = [layer.weight.data for layer in (*_linears(model), model.get_input_embeddings())]
    return {weight.data_ptr(): (weight, weight.data_ptr() in turned) for weight in found}


def _linears(model: Any) -> list[nn.Linear]:
    """Those that read text: of a model of images too, the part that sees them is in no bundle."""
    config = getattr(model, "config", None)
    others = {type(getattr(config, f"{kind}_config", None)) for kind in ("vision", "audio")}
    others.discard(type(None))
    apart = {
        layer
        for module in model.modules()
        if type(getattr(module, "config", None)) in others
        for layer in module.modules()
    }
    return [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and module not in apart
    ]


def _reading(
    forward: Callable[[Tensor], Tensor], *changes: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """``forward`` of the input after ``changes``."""

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
    """A weight (outputs, inputs) as a bundle's packing gives it back."""
    if settings["weights"] == "int4":
        group, steps = settings["group_size"], bool(settings.get("scale_steps"))
        return int4.dequantize_int4(*int4.quantize_int4(weight.detach(), group, steps=steps), group)
    return int4.dequantize_int8(*int4.quantize_int8(weight.detach()))


def dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    """Rows of a weight of int4 or int8 from what a bundle stores of them, float32."""
    dequantize = int4.dequantize_int8 if codes.dtype == torch.int8 else int4.dequantize_int4
    return dequantize(codes, scales)
