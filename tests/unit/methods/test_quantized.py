"""The quantized model of parity's other side."""

from __future__ import annotations

import pytest
import torch

from tests.support.graphs import WIDTH, SmallModel, tokens
from zoexport.core import int4
from zoexport.ir.product_ops import rounded_rows
from zoexport.methods.reference.quantized import quantize_model

SETTINGS = {"weights": "int4", "activations": "int8", "group_size": 32}


@pytest.mark.parametrize("rotated", [(), ("body.weight",)])
def test_adapters_read_the_input_as_it_was(rotated: tuple[str, ...]) -> None:
    """Found on SmolLM2: rounded inputs moved the losses of perturbed adapters by more than parity's bound."""
    model = SmallModel(torch.nn.Linear(WIDTH, WIDTH, bias=False))
    quantize_model(model, SETTINGS, rotated)
    seen = []
    model.body.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    model(tokens(2))
    assert torch.equal(seen[0], model.embed(tokens(2)))


def test_layers_read_rounded_rows_and_dequantized_weights() -> None:
    model = SmallModel(torch.nn.Linear(WIDTH, WIDTH, bias=False))
    weight = model.body.weight.detach().clone()
    quantize_model(model, SETTINGS)
    x = torch.arange(3 * WIDTH).view(3, WIDTH).sin()
    expected = rounded_rows(x) @ int4.dequantize_int4(*int4.quantize_int4(weight)).T
    torch.testing.assert_close(model.body(x), expected)
