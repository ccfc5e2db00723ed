"""Experts that all run give what transformers' own give."""

from __future__ import annotations

import pytest
import torch

from tests.support.architectures import VOCAB_SIZE, tiny_config, tiny_model
from zoexport.models import experts


# Of these, gpt_oss has biases and transposed weights, and nemotron_h experts without a gate.
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss", "nemotron_h"])
def test_all_experts_give_the_same_logits(name: str) -> None:
    experts.register()
    model = tiny_model(tiny_config(name))
    tokens = (torch.arange(48).view(2, 24) * 7 + 3) % VOCAB_SIZE
    with torch.no_grad():
        model.set_experts_implementation("eager")
        expected = model(input_ids=tokens).logits
        model.set_experts_implementation(experts.IMPLEMENTATION)
        found = model(input_ids=tokens).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
