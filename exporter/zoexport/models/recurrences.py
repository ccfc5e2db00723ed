"""Recurrent layers and causal convolutions as one operator each, while a model is captured.

transformers writes out the state spaces of Mamba, the gated delta rule and Kimi's attention in chunks or tokens: a
captured graph has thousands of calls, for one length. Its modeling files call functions of the same names, which stand
there for kernels of the hub; :func:`operators` replaces these functions.
"""

# ruff: noqa: N803  (names of arguments are transformers')

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def operators(model: Any) -> Iterator[None]:
    """Make the model's recurrent layers call the operators of namespace ``zoexport`` inside the context."""
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    with contextlib.ExitStack() as stack:
        for file in files:
            for name, function in _FUNCTIONS.items():
                if file.__name__.startswith("transformers.models.") and hasattr(file, name):
                    stack.enter_context(mock.patch.object(file, name, function))
        yield


def _delta_rule(
    query: Any,
    key: Any,
    value: Any,
    g: Any,
    beta: Any,
    chunk_size: int = 64,
    initial_state: Any = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Any, None]:
    """The gated delta rule; the decay g is (batch, tokens, heads), or (batch, tokens, heads, width of a key)."""
    import torch

    _from_the_start(initial_state, output_final_state)
    q, k, v, decay, strength = (one.float() for one in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (one * torch.rsqrt((one * one).sum(-1, keepdim=True) + 1e-6) for one in (q, k))
    decay = decay.unsqueeze(-1) if decay.dim() == strength.dim() else decay
    scaled = q * k.shape[-1] ** -0.5
    made = torch.ops.zoexport.linear_recurrence(scaled, k, v, decay, None, strength)
    return made.to(query.dtype), None


def _chunk_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    chunk_size: int,
    D: Any = None,
    dt_bias: Any = None,
    initial_states: Any = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """The state space of Mamba 2, with one rate for each head."""
    import torch

    _from_the_start(initial_states, False)
    x, step = hidden_states.float(), dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    step = torch.nn.functional.softplus(step) if dt_softplus else step
    step = torch.clamp(step, min=dt_limit[0], max=dt_limit[1]).float().unsqueeze(-1)
    recurrence = torch.ops.zoexport.linear_recurrence
    decay = step * A.float().unsqueeze(-1)
    made = recurrence(C.float(), B.float(), x * step, decay, None, None)
    made = made if D is None else made + x * D.unsqueeze(-1)
    return (made, None) if return_final_states else made


def _selective_scan(
    hidden_states: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    """The state space of Mamba: a head for each channel, with a rate for each element of its state."""
    import torch

    step = dt if delta_bias is None else dt + delta_bias.to(dt.dtype)[..., None]
    step = torch.nn.functional.softplus(step) if delta_softplus else step
    step, x = step.mT.unsqueeze(-1).float(), hidden_states.mT.unsqueeze(-1).float()
    q, k = C.mT.unsqueeze(2).float(), B.mT.unsqueeze(2).float()
    made = torch.ops.zoexport.linear_recurrence(q, k, step * x, step, A.float(), None)
    made = made.squeeze(-1).mT.to(hidden_states.dtype)
    made = made if D is None else made + hidden_states * D[None, :, None]
    made = made if z is None else made * torch.nn.functional.silu(z)
    return (made, None) if return_last_state else made


def _causal_conv(
    hidden_states: Any, weight: Any, bias: Any = None, activation: str | None = None, **_: Any
) -> Any:
    import torch
    from transformers.activations import ACT2FN

    rows = hidden_states.to(weight.dtype).mT
    made = torch.ops.zoexport.causal_conv(rows, weight, bias, False).mT
    made = made if activation is None else ACT2FN[activation](made)
    return made.to(hidden_states.dtype)


def _from_the_start(state: Any, asked: bool) -> None:
    if state is not None or asked:
        raise NotImplementedError("a recurrence that goes on from a state")


_FUNCTIONS = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba_selective_scan": _selective_scan,
    "causal_conv1d_fn": _causal_conv,
}
