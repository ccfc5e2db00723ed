"""choose_rows_early moves the choice of label rows before what treats each row alone, and no further."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.support.graphs import (
    SEQ,
    WIDTH,
    captured,
    label_inputs,
    label_logits,
    label_logprobs_of,
    operators,
)
from zoexport.core.graph import TrainingGraph
from zoexport.ir.graphs import aten, is_call, shape_of
from zoexport.ir.interpret import interpret
from zoexport.passes.bind_rows import bind_rows
from zoexport.passes.choose_rows_early import choose_rows_early
from zoexport.passes.cleanup import cleanup
from zoexport.passes.fold_constants import fold_constants
from zoexport.passes.label_logprobs import label_logprobs

ROWS = 3


def _mixed(x: Tensor) -> Tensor:
    """Every row of the result depends on the rows before it."""
    return torch.softmax(x @ x.transpose(1, 2), -1) @ x


class _Layer(nn.Module):
    """What follows attention in a decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.gate, self.up = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.out(_mixed(x))
        n = self.norm(h)
        n = n * torch.rsqrt(n.pow(2).mean(-1, keepdim=True) + 1)
        return h + nn.functional.silu(self.gate(n)) * self.up(n)


class _Positions(_Layer):
    """The last computation adds something that depends on the position."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.arange(SEQ * WIDTH).view(1, SEQ, WIDTH).sin()


class _MixedAgain(_Layer):
    """Other rows are read once more at the end."""

    def forward(self, x: Tensor) -> Tensor:
        return _mixed(super().forward(x))


class _ReadTwice(_Layer):
    """The layer's result is read by something that mixes rows, too."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + _mixed(y)


def _rewritten(body: nn.Module, rows: int = ROWS) -> tuple[nn.Module, TrainingGraph]:
    model, graph = captured(body)
    graph = label_logprobs(cleanup(graph), max_labels=rows * SEQ)
    return model, choose_rows_early(fold_constants(bind_rows(graph, rows)))


def _linear_rows(graph: TrainingGraph) -> list[tuple[int, int]]:
    """Rows by position of what each linear layer gives, the head included."""
    nodes = graph.programs["evaluate"].module.graph.nodes
    return [shape_of(node)[:2] for node in nodes if is_call(node, aten.linear)]


def _check_numbers(model: nn.Module, graph: TrainingGraph, rows: int = ROWS) -> None:
    inputs = label_inputs(rows)
    found = interpret(graph, "evaluate", inputs)["label_logprobs"]
    torch.testing.assert_close(found, label_logprobs_of(label_logits(model, inputs), inputs))


def test_what_follows_attention_is_computed_for_label_rows() -> None:
    model, graph = _rewritten(_Layer())
    every, chosen = set(_linear_rows(graph)), _linear_rows(graph)[0]
    # One set of rows everywhere: neither the rows of the batch, nor its sequences.
    assert every == {chosen} and chosen not in ((ROWS, SEQ), (1, ROWS * SEQ))
    # The rows of the input and those of attention.
    assert operators(graph.programs["evaluate"])["aten.index_select.default"] == 2
    _check_numbers(model, graph)


def test_a_choice_stays_behind_what_depends_on_the_position() -> None:
    model, graph = _rewritten(_Positions())
    assert _linear_rows(graph)[:-1] == [(ROWS, SEQ)] * 3
    _check_numbers(model, graph)


def test_of_one_row_what_depends_on_the_position_is_chosen_too() -> None:
    model, graph = _rewritten(_Positions(), rows=1)
    assert len(set(_linear_rows(graph))) == 1
    _check_numbers(model, graph, rows=1)


def test_a_choice_stays_behind_what_mixes_rows() -> None:
    model, graph = _rewritten(_MixedAgain())
    assert _linear_rows(graph)[:-1] == [(ROWS, SEQ)] * 3
    assert operators(graph.programs["evaluate"])["aten.index_select.default"] == 1
    _check_numbers(model, graph)


def test_what_something_else_reads_is_computed_once() -> None:
    model, graph = _rewritten(_ReadTwice())
    assert _linear_rows(graph)[:-1] == [(ROWS, SEQ)] * 3
    _check_numbers(model, graph)
