"""round_to_bf16: layers multiply numbers that are rounded to bfloat16, forward and backward; the head does not."""

from __future__ import annotations

import pytest

from tests.support.graphs import operators
from tests.support.splits import Layer, small
from zoexport.passes.split_layers import HEAD


@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_layers_and_their_gradients(weights: str) -> None:
    layers = [Layer(), Layer()]
    _, graph = small(
        layers, "score_labels", weights=weights, compute="bf16", targets=["body.1.linear"]
    )
    rounded, plain = f"zoexport.linear_{weights}_bf16", f"zoexport.linear_{weights}"
    seen = set()
    for program in graph.programs.values():
        found = operators(program)
        if program.family.startswith(HEAD):
            assert found[f"{rounded}.default"] == found[f"{rounded}_input_gradient.default"] == 0
        else:
            assert found[f"{plain}.default"] == found[f"{plain}_input_gradient.default"] == 0
        seen |= {name for name in found if "linear_int" in name}
    assert f"{rounded}.default" in seen and f"{rounded}_input_gradient.default" in seen
    assert f"{plain}.default" in seen  # the head's
