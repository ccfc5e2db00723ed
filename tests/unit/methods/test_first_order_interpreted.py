"""The stages of a split graph, run in plain torch, against autograd over the model itself."""

from __future__ import annotations

import pytest
import torch

from tests.support.splits import ROWS, by_autograd, by_stages, difference, tiny_graph
from tests.support.tiers import slow_architectures
from tests.support.tiny_models import ARCHITECTURES

QUANTIZED = ("llama_tied", "gemma3", "gpt2", "phi3", "opt")
CASES = [
    *((name, "fp32") for name in ARCHITECTURES),
    *((name, "int4") for name in QUANTIZED),
    ("llama_tied", "int8"),
]


@pytest.mark.parametrize(("name", "weights"), slow_architectures(CASES))
def test_gradients_are_those_of_the_model(name: str, weights: str) -> None:
    graph, reference = tiny_graph(name, weights=weights)
    assert graph.lengths == [32, 48] and graph.rows == ROWS
    for length in graph.lengths:
        expected_logprobs, expected = by_autograd(reference, length)
        # The sum over two calls is the gradient of the labels together.
        logprobs, found = by_stages(graph, length, (slice(0, 2), slice(2, None)))
        torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
        assert set(found) == set(expected)
        assert all(gradient.norm() > 1e-4 for gradient in expected.values())
        assert max(difference(found[slot], expected[slot]) for slot in expected) < 2e-5
