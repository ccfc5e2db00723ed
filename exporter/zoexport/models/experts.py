"""Mixtures of experts with sizes that do not depend on the tokens.

transformers runs each expert on the tokens that chose it, which a captured graph cannot do. Here
each expert runs on all tokens, and its output is multiplied by its router weight, 0 if it was not
chosen. The values are the same; the number of operations grows by the ratio of all experts to
chosen experts.
"""

from __future__ import annotations

from typing import Any

IMPLEMENTATION = "zoexport"
"""Name of the implementation in transformers."""


def register() -> None:
    """Make :func:`all_experts` one of transformers' implementations of experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, all_experts)


def all_experts(module: Any, hidden: Any, chosen: Any, shares: Any) -> Any:
    """Return the weighted sum of the experts.

    Args:
        module: experts as described by ``use_experts_implementation``.
        hidden: float (tokens, width). chosen: int (tokens, k), experts by number. shares: float (tokens, k).

    Returns:
        float (tokens, width).
    """
    import torch

    def linear(inputs: Any, name: str) -> Any:
        weight = getattr(module, name)
        weight = weight if module.is_transposed else weight.transpose(1, 2)
        made = torch.matmul(inputs, weight)
        return made + getattr(module, f"{name}_bias").unsqueeze(1) if module.has_bias else made

    experts = torch.arange(module.down_proj.shape[0], device=hidden.device)
    is_chosen = (chosen.unsqueeze(-1) == experts).to(shares.dtype)
    share = (is_chosen * shares.unsqueeze(-1)).sum(1).transpose(0, 1).unsqueeze(-1)
    made = linear(hidden.unsqueeze(0), "gate_up_proj" if module.has_gate else "up_proj")
    made = linear(module._apply_gate(made) if module.has_gate else module.act_fn(made), "down_proj")
    if module.has_post_expert_norm:
        made = module.post_expert_norm(made)
    return (made * share).sum(0).to(hidden.dtype)
