"""drop_inputs: adapters read their inputs times a mask, forward and backward; the frozen layers read them whole."""

from __future__ import annotations

import pytest
import torch

from tests.support.splits import (
    LABEL_WEIGHTS,
    LABELS,
    POSITIONS,
    ROWS,
    difference,
    state,
    tiny_graph,
)
from tests.support.tiny_models import fixed_tokens
from zoexport.core.errors import ConfigError
from zoexport.ir.interpret import Stages
from zoexport.methods.reference.adapted import Dropped
from zoexport.methods.reference.mebp import FirstOrderReference

SHARE = 0.3


def _masks(graph: object, length: int) -> dict[str, torch.Tensor]:
    """As a step draws them, example by example."""
    slots = {slot.name: slot for slot in graph.slots}  # type: ignore[attr-defined]
    found = {}
    for name, slot in slots.items():
        if name.startswith("lora_B."):
            width = slots[name.replace("lora_B", "lora_A", 1)].shape[0]
            rows = [
                Dropped(SHARE, 5, 2, row).factors(slot.tensor_id, torch.empty(length, width))
                for row in range(ROWS)
            ]
            found[name] = torch.stack(rows)
    return found


@pytest.mark.parametrize(
    ("name", "weights"), [("llama_tied", "fp32"), ("gpt2", "int4"), ("opt", "fp32")]
)
def test_gradients_are_those_of_the_model_with_the_masks(name: str, weights: str) -> None:
    graph, reference = tiny_graph(name, weights=weights, lora__dropout=str(SHARE))
    length = graph.lengths[0]
    masks = _masks(graph, length)
    assert all(0.2 < float((mask == 0).float().mean()) < 0.4 for mask in masks.values())
    stages = Stages(graph, state(graph), length, dropout=masks)
    given = (fixed_tokens(ROWS, length), torch.tensor(POSITIONS), LABELS, LABEL_WEIGHTS)
    logprobs, found = stages.gradients(*given)

    expected = {name: torch.zeros_like(value) for name, value in reference.slots.items()}
    wanted = torch.zeros(len(POSITIONS), dtype=torch.float64)
    for row in range(ROWS):
        places = [at for at, place in enumerate(POSITIONS) if place // length == row]
        if not places:
            continue
        with reference.adapted.hooked(reference.added(Dropped(SHARE, 5, 2, row))):
            tokens = fixed_tokens(ROWS, length)[row : row + 1]
            logits = reference.adapted.model(input_ids=tokens, use_cache=False).logits[0]
        chosen = logits[torch.tensor([POSITIONS[at] % length for at in places])]
        of_row = torch.log_softmax(chosen, -1).gather(1, LABELS[places][:, None])[:, 0]
        wanted[places] = of_row.detach().double()
        gradients = torch.autograd.grad(
            (of_row * LABEL_WEIGHTS[places]).sum(), [*reference.slots.values()]
        )
        for slot, gradient in zip(expected, gradients, strict=True):
            expected[slot] = expected[slot] + gradient
    torch.testing.assert_close(logprobs, wanted.float(), rtol=1e-5, atol=1e-5)
    assert max(difference(found[slot], expected[slot].float()) for slot in expected) < 2e-5
    # Without masks it is another function.
    whole, _ = Stages(graph, state(graph), length).gradients(*given)
    assert (whole - logprobs).abs().max() > 1e-4


def test_without_dropout_there_is_no_such_input() -> None:
    graph, reference = tiny_graph("llama_tied", weights="fp32")
    assert isinstance(reference, FirstOrderReference)
    roles = {value.role for program in graph.programs.values() for value in program.inputs}
    assert "dropout" not in roles


def test_adapters_of_an_output_head_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora\.dropout.*which is in the output head"):
        tiny_graph("bert", weights="fp32", lora__dropout="0.1")
