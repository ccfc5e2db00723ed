"""mask_padding: an encoder's mask becomes a row of numbers and says the same; other models stay as they are."""

from __future__ import annotations

import pytest
import torch

from tests.support.tiny_models import ENCODERS, fixed_tokens, tiny
from zoexport.core.encoders import model_inputs
from zoexport.core.graph import TrainingGraph
from zoexport.ir.capture import capture
from zoexport.ir.graphs import placeholders, shape_of
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.cleanup import cleanup
from zoexport.passes.find_linears import find_linears
from zoexport.passes.fold_constants import fold_constants
from zoexport.passes.mask_padding import mask_padding

ROWS, LENGTH = 3, 29


def graph_of(name: str) -> TrainingGraph:
    graph = capture(tiny(name), LENGTH)
    for apply in (cleanup, find_linears):
        graph = apply(graph)
    graph = bind_rows(graph, ROWS)
    return fold_constants(graph, keep=graph.parameters)


def padded(pad: int) -> torch.Tensor:
    tokens = fixed_tokens(ROWS, LENGTH)
    for row, length in enumerate((LENGTH, 7, 12)):
        tokens[row, length:] = pad
    tokens[0, 3] = pad
    return tokens


def of_tokens_alone(graph: TrainingGraph) -> list[torch.fx.Node]:
    """The calls that the tokens decide, with nothing of the model's own."""
    program = graph.programs["forward"]
    inputs = placeholders(program)
    own = {inputs[name] for name in graph.parameters if name in inputs}
    found = [inputs["tokens"]]
    for node in program.module.graph.nodes:
        if own.intersection(node.all_input_nodes):
            own.add(node)
        elif {*found}.intersection(node.all_input_nodes):
            found.append(node)
    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_the_mask_is_a_row_of_numbers(name: str) -> None:
    graph = graph_of(name)
    assert graph.pad_token is not None
    tokens = padded(graph.pad_token)
    model = tiny(name)
    with torch.no_grad():
        expected = model(**model_inputs(model, tokens)).logits
        # A mask that hides nothing would do for rows without padding.
        assert (model(input_ids=tokens).logits - expected)[1:].abs().max() > 1e-2
    graph = mask_padding(graph)
    found = interpret(graph, "forward", {"tokens": tokens})["logits"]
    assert (found - expected).abs().max() < 1e-5
    assert [shape_of(node) for node in of_tokens_alone(graph) if len(shape_of(node)) > 2] == [
        (ROWS, 1, 1, LENGTH),
        (ROWS, 1, LENGTH, LENGTH),
    ]
    (mask,) = (
        node
        for node in of_tokens_alone(graph)
        if len(shape_of(node)) == 4 and node.users and shape_of(node)[2] == LENGTH
    )
    assert str(mask.target) == "aten.expand.default", "n x n numbers are computed"


def test_each_row_has_its_own_mask() -> None:
    """The rows of a batch are numbered, as transformers' masks find their tokens by that."""
    graph = graph_of("bert")
    tokens = padded(0)
    found = interpret(graph, "forward", {"tokens": tokens})["logits"]
    for row in range(ROWS):
        model = tiny("bert")
        with torch.no_grad():
            expected = model(**model_inputs(model, tokens[row : row + 1])).logits[0]
        assert (found[row] - expected).abs().max() < 1e-5


def test_causal_models_stay_as_they_are() -> None:
    graph = graph_of("llama")
    before = str(graph.programs["forward"].module.graph)
    assert str(mask_padding(graph).programs["forward"].module.graph) == before
