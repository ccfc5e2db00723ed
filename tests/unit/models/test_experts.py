"""Both ways to run experts give what transformers' own give, and routed experts read the chosen ones alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.architectures import VOCAB_SIZE, tiny_config, tiny_model
from zoexport.ir import ops as _declared  # noqa: F401  (registers the operators)
from zoexport.models import experts
from zoexport.models.streaming import streaming

# gpt_oss has biases and transposed weights, and the experts of nemotron_h have no gate.
NAMES = ["mixtral", "qwen3_moe", "gpt_oss", "nemotron_h"]
TOKENS = (torch.arange(48).view(2, 24) * 7 + 3) % VOCAB_SIZE


def logits(model: Any, implementation: str) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of their squares by the embedded tokens."""
    model.set_experts_implementation(implementation)
    rows = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
    made = model(inputs_embeds=rows).logits
    (gradient,) = torch.autograd.grad(made.square().mean(), rows)
    return made.detach(), gradient


@pytest.mark.parametrize("way", [experts.DENSE, experts.ROUTED])
@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_are_those_of_transformers(name: str, way: str) -> None:
    experts.register()
    model = tiny_model(tiny_config(name))
    for found, expected in zip(logits(model, way), logits(model, "eager"), strict=True):
        bound = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=bound)


@pytest.mark.parametrize("name", NAMES)
def test_streamed_experts_are_read_when_they_are_chosen(name: str) -> None:
    experts.register()
    model = tiny_model(tiny_config(name))
    model.requires_grad_(False)
    expected = logits(model, experts.ROUTED)
    values = {path: value.detach().clone() for path, value in model.named_parameters()}
    read: list[tuple[str, int]] = []

    class Reader:
        def read_rows(self, path: str, begin: int, end: int) -> Tensor:
            if path in experts.fused_weights(model):
                assert end == begin + 1
                read.append((path, begin))
            return values[path][begin:end]

    with streaming(model, Reader()):
        assert all(not weight.numel() for weight in experts.fused_weights(model).values())
        found = logits(model, experts.ROUTED)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert {path for path, _ in read} == experts.fused_weights(model).keys()
    assert all(torch.equal(value, values[path]) for path, value in model.named_parameters())
