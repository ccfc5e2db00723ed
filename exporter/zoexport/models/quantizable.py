"""Choice of the parameters that int4 and int8 quantize: one rule for bundles and for their reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoexport.core.int4 import GROUP_SIZE
from zoexport.models.experts import fused_weights, is_routed

if TYPE_CHECKING:
    from torch import nn


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_ROUTERS = ("gate", "router")
_TOKEN_TABLES = ("embed_tokens_per_layer",)
"""Embeddings of tokens beside the model's input embedding (Gemma 3n and 4)."""


def unquantized(model: nn.Module, weights: str) -> set[str]:
    """Return the names of the parameters that keep float32.

    Linear layers, embeddings of tokens and routed experts are quantized, except for routers of experts, whose choice
    a small error changes, and with int4 for weights whose inputs no group divides, as in narrow layers.

    Args:
        weights: ``int4`` or ``int8``.
    """
    from torch import nn

    quantized = {
        id(module.weight)
        for path, module in model.named_modules()
        if (
            isinstance(module, nn.Linear)
            and _has_groups(module.weight, weights)
            and not is_router(model, path)
        )
        or _embeds_tokens(model, path, module)
    }
    if is_routed(model):
        experts = fused_weights(model).values()
        quantized |= {id(weight) for weight in experts if _has_groups(weight, weights)}
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, value in named if id(value) not in quantized}


def _has_groups(weight: Any, weights: str) -> bool:
    return bool(weights != "int4" or weight.shape[-1] % GROUP_SIZE == 0)


def is_router(model: Any, path: str) -> bool:
    """Return whether the linear layer at ``path`` chooses experts: a gate or router with an output for each."""
    if path.rpartition(".")[2] not in _ROUTERS:
        return False
    config = getattr(model, "config", None)
    text = None if config is None else config.get_text_config()
    counts = {getattr(text, name, None) for name in _EXPERTS}
    return model.get_submodule(path).out_features in counts


def _embeds_tokens(model: Any, path: str, module: nn.Module) -> bool:
    from torch import nn

    if not isinstance(module, nn.Embedding):
        return False
    return module is model.get_input_embeddings() or path.endswith(_TOKEN_TABLES)
