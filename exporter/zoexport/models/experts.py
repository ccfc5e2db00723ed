"""Mixtures of experts as a computation whose sizes do not depend on the tokens.

transformers runs each expert on the tokens that chose it, which a captured graph cannot. Here each expert runs on all
tokens, and its result counts by what the router gave it, 0 if it was not chosen: the same values, for as many times the
arithmetic as there are experts for each that a token chooses.
"""

from __future__ import annotations

from typing import Any

IMPLEMENTATION = "zoexport"
"""The name under which transformers finds it."""


def register() -> None:
    """Make :func:`all_experts` one of transformers' implementations of experts."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, all_experts)


def all_experts(module: Any, hidden: Any, chosen: Any, shares: Any) -> Any:
    """The weighted sum of experts.

    Args:
        module: the experts, as ``use_experts_implementation`` describes them.
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
