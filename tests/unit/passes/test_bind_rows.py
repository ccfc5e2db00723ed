"""bind_rows computes each value for as few rows as it depends on, and refuses models that mix rows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.graphs import SEQ, WIDTH, captured, operators
from zoexport.core.errors import VerifyError
from zoexport.core.graph import Dim, TrainingGraph
from zoexport.core.lora_scaling import LoraScaling
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.dual_forward import dual_forward
from zoexport.passes.label_logprobs import label_logprobs
from zoexport.passes.lora_inject import lora_inject

ROWS, COPIES = 3, 4


class _Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.adapted = nn.Linear(WIDTH, WIDTH)
        self.beside = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = (
            torch.arange(x.shape[0])[:, None, None] * 0 + torch.arange(x.shape[1])[None, :, None]
        )
        h = self.before(x + positions.float())
        return self.after(self.adapted(h) * self.beside(h))


def _bound(body: nn.Module) -> TrainingGraph:
    _, graph = captured(body)
    lora_inject(graph, ["body.adapted"], LoraScaling(2, 2), seed=0)
    dual_forward(graph, COPIES // 2)
    label_logprobs(graph, max_labels=ROWS * SEQ)
    return bind_rows(graph, ROWS)


def test_each_layer_runs_for_the_rows_it_needs() -> None:
    program = _bound(_Body()).programs["train"]
    rows = {}
    for node in program.module.graph.nodes:
        if "linear" in str(node.target):
            rows[node.args[1].name.removeprefix("p_model_body_")] = node.meta["val"].shape[0]
    assert rows["before_weight"] == rows["adapted_weight"] == rows["beside_weight"] == ROWS
    assert rows["after_weight"] == ROWS * COPIES
    # The batch index enters the positions once, and broadcasts where they are added.
    sums = [
        tuple(node.meta["val"].shape)
        for node in program.module.graph.nodes
        if "add.Tensor" in str(node.target)
    ]
    assert (1, SEQ, 1) in sums
    repeats = operators(program)["aten.repeat.default"]
    assert repeats == 3  # h A, and the outputs of adapted and beside


def test_a_model_that_mixes_rows_is_refused() -> None:
    with pytest.raises(VerifyError, match="first dimension"):
        _bound(_Transposed())


class _Transposed(_Body):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x).transpose(0, 1)
        return self.after((self.adapted(x).transpose(0, 1) * h).transpose(0, 1))


def test_labels_stay_dynamic() -> None:
    graph = _bound(_Body())
    outputs = {value.name: value for value in graph.programs["train"].outputs}
    labels = outputs["label_logprobs"].shape
    assert labels[0] == COPIES
    assert labels[1] == Dim("labels", 1, ROWS * SEQ)


class _Flattened(_Body):
    """Adds positions to hidden states whose rows and tokens share a dimension, as OPT's layers do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length = x.shape[:2]
        positions = torch.arange(length).expand(rows, length).reshape(-1, 1).float()
        flat = self.adapted(self.before(x).reshape(-1, WIDTH)) + positions
        return self.after(flat.reshape(rows, length, WIDTH))


def test_rows_that_share_a_dimension_are_repeated() -> None:
    program = _bound(_Flattened()).programs["train"]
    sums = [
        tuple(node.meta["val"].shape)
        for node in program.module.graph.nodes
        if "add.Tensor" in str(node.target)
    ]
    assert (ROWS * COPIES * SEQ, WIDTH) in sums
