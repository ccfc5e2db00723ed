"""The Hugging Face model with a bundle's quantization, in plain PyTorch: the other side of parity.

It states what quantization means without the passes: every linear layer and the token embedding read the
dequantized weight, and every linear layer's input is rounded to int8 with one scale a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import int4


def quantize_model(model: Any, settings: dict[str, Any]) -> None:
    """Change ``model`` in place to compute as a bundle with these settings does.

    Args:
        model: a transformers causal language model, fp32.
        settings: ``weights``, ``activations`` and ``group_size`` of the bundle's manifest.
    """
    if settings["weights"] == "fp32":
        return
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    done: set[int] = set()
    with torch.no_grad():
        for layer in (*layers, model.get_input_embeddings()):
            if layer.weight.data_ptr() in done:
                continue
            done.add(layer.weight.data_ptr())
            layer.weight.copy_(_rounded(layer.weight, settings))
    if settings["activations"] == "int8":
        for layer in layers:
            layer.register_forward_pre_hook(_round_inputs)


def _rounded(weight: Tensor, settings: dict[str, Any]) -> Tensor:
    if settings["weights"] == "int4":
        group = settings["group_size"]
        return int4.dequantize_int4(*int4.quantize_int4(weight.detach(), group), group)
    return int4.dequantize_int8(*int4.quantize_int8(weight.detach()))


def _round_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (round_rows(inputs[0]), *inputs[1:])


def round_rows(x: Tensor) -> Tensor:
    """Dynamic int8: each row (last dimension) on its own grid of 256 values that contains zero.

    The grid spans the row's minimum and maximum, zero included, in 255 steps. The zero point lies where the end of
    the range with the smaller rounding error puts it. This is the order of float32 operations of XNNPACK's
    qd8 packing, since a different order would move values across rounding boundaries.
    """
    low = x.amin(-1, keepdim=True).clamp(max=0.0)
    high = x.amax(-1, keepdim=True).clamp(min=0.0)
    per_unit = 255.0 / torch.where(high > low, high - low, torch.full_like(high, 255.0))
    error_low = -128.0 + low * per_unit
    error_high = 127.0 + high * per_unit
    zero_point = torch.where(
        error_low + error_high > 0, -128.0 - low * per_unit, 127.0 - high * per_unit
    )
    zero_point = zero_point.clamp(-128, 127).round()
    codes = ((x * per_unit).round() + zero_point).clamp(-128, 127)
    return (codes - zero_point) * (1.0 / per_unit)
