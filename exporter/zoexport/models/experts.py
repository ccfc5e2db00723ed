"""Mixtures of experts with sizes that do not depend on the tokens.

transformers runs each expert on the tokens that chose it, which a captured graph cannot do. There are two ways:

- routed: the operator ``routed_linear`` multiplies each row with the weight of the expert that was chosen for it.
  A device reads and computes only the chosen experts.
- dense, for targets without this operator: each expert runs on all tokens, and its output is multiplied by its
  router weight, 0 if it was not chosen. The number of operations grows by the ratio of all experts to chosen ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DENSE, ROUTED = "zoexport-dense", "zoexport-routed"
"""Names of the implementations in transformers."""
_WEIGHTS = ("gate_up_proj", "up_proj", "down_proj")
"""Parameters of transformers' fused experts, each (experts, outputs, inputs) or (experts, inputs, outputs)."""


def register() -> None:
    """Make both ways implementations of transformers' experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(DENSE, all_experts)
    ALL_EXPERTS_FUNCTIONS.register(ROUTED, routed_experts)


def has_experts(model: Any) -> bool:
    """Return whether the model has fused experts, whose implementation can be chosen."""
    return bool(_fused(model))


def route_experts(model: Any) -> None:
    """Let the model's fused experts be routed; without any, do nothing."""
    if has_experts(model):
        model.set_experts_implementation(ROUTED)


def is_routed(model: Any) -> bool:
    """Return whether the model has fused experts, and they are routed."""
    return any(
        experts.config._experts_implementation == ROUTED for experts in _fused(model).values()
    )


def fused_weights(model: Any) -> dict[str, Any]:
    """Return the parameters of fused experts by their paths."""
    return {
        f"{path}.{name}": value
        for path, experts in _fused(model).items()
        for name, value in experts.named_parameters(recurse=False)
        if name in _WEIGHTS
    }


def _fused(model: Any) -> dict[str, Any]:
    """Return the modules that transformers' ``use_experts_implementation`` made, by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if hasattr(module, "is_transposed") and hasattr(module, "has_gate")
    }


def routed_experts(
    module: Any,
    hidden: Any,
    chosen: Any,
    shares: Any,
    products: Mapping[str, Callable[[Any, Any, bool], Any]] | None = None,
) -> Any:
    """Return the weighted sum of the chosen experts.

    Args:
        module: experts as described by ``use_experts_implementation``.
        hidden: float (tokens, width). chosen: int (tokens, k), experts by number. shares: float (tokens, k).
        products: by parameter, the function of rows (tokens, k or 1, inputs), ``chosen`` and whether the weights
            are (experts, inputs, outputs) that multiplies; None: the operator ``routed_linear``.

    Returns:
        float (tokens, width).
    """
    import torch

    def linear(rows: Any, name: str) -> Any:
        transposed = module.is_transposed
        if products is None:
            weight = getattr(module, name)
            made = torch.ops.zoexport.routed_linear(rows, weight, chosen, transposed)
        else:
            made = products[name](rows, chosen, transposed)
        if not module.has_bias:
            return made
        return made + torch.nn.functional.embedding(chosen, getattr(module, f"{name}_bias"))

    made = _expert(module, hidden.unsqueeze(1), linear)
    return (made * shares.unsqueeze(-1)).sum(1).to(hidden.dtype)


def all_experts(module: Any, hidden: Any, chosen: Any, shares: Any) -> Any:
    """Return the weighted sum of the experts, each computed for all tokens.

    Args:
        module, hidden, chosen, shares: see :func:`routed_experts`.

    Returns:
        float (tokens, width).
    """
    import torch

    def linear(rows: Any, name: str) -> Any:
        weight = getattr(module, name)
        weight = weight if module.is_transposed else weight.transpose(1, 2)
        made = torch.matmul(rows, weight)
        return made + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else made

    experts = torch.arange(module.down_proj.shape[0], device=hidden.device)
    is_chosen = (chosen.unsqueeze(-1) == experts).to(shares.dtype)
    share = (is_chosen * shares.unsqueeze(-1)).sum(1).transpose(0, 1).unsqueeze(-1)
    made = _expert(module, hidden.unsqueeze(0), linear)
    return (made * share).sum(0).to(hidden.dtype)


def _expert(module: Any, rows: Any, linear: Callable[[Any, str], Any]) -> Any:
    """Return what experts compute of rows, before the router's weights."""
    made = linear(rows, "gate_up_proj" if module.has_gate else "up_proj")
    made = linear(module._apply_gate(made) if module.has_gate else module.act_fn(made), "down_proj")
    return module.post_expert_norm(made) if module.has_post_expert_norm else made
