"""prge, mezo and fzoo with granularity=layer: the same stages without gradients, which say what the model says."""

from __future__ import annotations

import pytest
import torch

from tests.support.splits import LABELS, POSITIONS, by_autograd, state
from tests.support.tiny_models import fixed_tokens, tiny
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.step_plan import ProbeLevel, StepPlan
from zoexport.ir.frozen import materialize
from zoexport.ir.interpret import Stages
from zoexport.methods.mebp import MebpConfig
from zoexport.methods.reference.mebp import FirstOrderReference
from zoexport.models.weights import LoadedWeights

PLANS = {
    "prge": StepPlan((ProbeLevel(0, 4),), "stage"),
    "mezo": StepPlan((ProbeLevel(0, 4),), "one"),
    "fzoo": StepPlan((ProbeLevel(0, 7, "forward"),), "stage", "rademacher", "deviation"),
}
SETTINGS = {
    "max_length": "32",
    "batch_size": "2",
    "weights": "fp32",
    "lora.r": "4",
    "lora.alpha": "8",
}


@pytest.mark.parametrize("method", ["prge", "mezo", "fzoo"])
@pytest.mark.parametrize("name", ["llama_tied", "opt"])
def test_stages_are_the_model(method: str, name: str) -> None:
    model = tiny(name)
    planned = plan(method, "host", SETTINGS)
    graph = training_graph(planned, model, lambda *_: None)
    materialize(graph, LoadedWeights(model))
    assert [stage.backward for stage in graph.stages] == [None] * len(graph.stages)
    assert list(graph.programs) == ["embedding@32", "layer.0@32", "head"]
    roles = {slot.name.split(".")[0]: slot.role for slot in graph.slots}
    assert roles == {"lora_A": "frozen", "lora_B": "trainable"}
    assert "differentiate" not in graph.provenance
    assert graph.provenance[-2:] == ["score_labels", "one_sided" if method == "fzoo" else "spsa"]
    assert graph.step == PLANS[method]

    stages = Stages(graph, state(graph), 32)
    *_, (hidden,) = stages.forward(fixed_tokens(2, 32))
    count = len(POSITIONS)
    rows = hidden.flatten(0, 1)[torch.tensor(POSITIONS)]
    filling = graph.label_rows - count
    rows = torch.cat([rows, rows[:1].expand(filling, -1)])
    labels = torch.cat([LABELS, LABELS[:1].expand(filling)])
    head = graph.stages[-1]
    given = {"hidden": rows, "label_tokens": labels}
    given |= {local: graph.weights[name] for local, name in head.bind.items()}
    program = graph.programs["head"]
    logprobs, _ = program.module(*(given[value.name] for value in program.inputs))
    config = MebpConfig(lora_r=4, lora_alpha=8)
    expected, _ = by_autograd(FirstOrderReference(model, config, state(graph)), 32)
    torch.testing.assert_close(logprobs[:count], expected, rtol=1e-5, atol=1e-5)
