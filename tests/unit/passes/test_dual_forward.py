"""Programs with two sides, one side or one copy read the perturbed copies, and refuse adapters in another form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from tests.support.graphs import WIDTH, captured, operators
from zoexport.core.errors import VerifyError
from zoexport.core.graph import TrainingGraph
from zoexport.core.lora_scaling import LoraScaling
from zoexport.ir.graphs import aten, is_call, placeholders, zo
from zoexport.passes.dual_forward import dual_forward, one_sided_forward, sequential_forward
from zoexport.passes.lora_inject import lora_inject


def _injected() -> TrainingGraph:
    _, graph = captured(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)))
    return lora_inject(graph, ["body.0", "body.1"], LoraScaling(2, 2), seed=0)


@pytest.mark.parametrize(
    ("derive", "update", "operator", "copies"),
    [
        (dual_forward, "zo_update", "zo_perturb", 6),
        (one_sided_forward, "zo_update_signs", "zo_perturb_signs", 4),
        (sequential_forward, "zo_update", "zo_perturb_one", 1),
    ],
)
def test_train_updates_and_perturbs_every_adapter(
    derive: Callable[[TrainingGraph, int], TrainingGraph], update: str, operator: str, copies: int
) -> None:
    graph = derive(_injected(), 3)
    program = graph.programs["train"]
    counts = operators(program)
    assert counts[f"zoexport.{update}.default"] == counts[f"zoexport.{operator}.default"] == 2
    assert counts["aten.bmm.default"] == 2
    assert graph.copies == copies
    assert [value.name for value in program.outputs] == ["logits", "lora_B.body.0", "lora_B.body.1"]
    roles = {value.role for value in program.arguments()}
    assert {"projected_gradients", "learning_rate", "epsilon", "seed", "step"} <= roles
    assert ("query" in roles) == (derive is sequential_forward)


def test_copies_are_made_where_they_are_read() -> None:
    """So that those of later layers are not in memory while a layer is computed."""
    program = dual_forward(_injected(), 3).programs["train"]
    steps = (zo.zo_update, zo.zo_perturb, aten.bmm)
    found = [
        node.target.overloadpacket for node in program.module.graph.nodes if is_call(node, *steps)
    ]
    assert found == [*steps, *steps]


def test_forward_is_left_alone() -> None:
    graph = _injected()
    before = operators(graph.programs["forward"])
    dual_forward(graph, 2)
    assert operators(graph.programs["forward"]) == before


def test_an_adapter_read_by_something_else_is_refused() -> None:
    graph = _injected()
    program = graph.programs["forward"]
    master = placeholders(program)["lora_B.body.0"]
    user = next(iter(master.users))
    with program.module.graph.inserting_before(user):
        doubled = program.module.graph.call_function(aten.mul.Tensor, (master, 2.0))
        doubled.meta["val"] = master.meta["val"]
    user.replace_input_with(master, doubled)
    with pytest.raises(VerifyError, match="right side of a matrix product"):
        dual_forward(graph, 2)
