"""score_labels gives log-probabilities of labels in place of logits, and changes no other program."""

from __future__ import annotations

import torch

from tests.support.graphs import VOCAB, WIDTH
from tests.support.splits import Layer, small

TARGETS = ["body.0.linear"]


def test_the_head_scores_labels() -> None:
    model, graph = small([Layer()], "score_labels", targets=TARGETS)
    head = graph.programs["head"]
    count = graph.label_rows
    assert [(value.name, value.role, value.dtype, value.shape) for value in head.outputs] == [
        ("label_logprobs", "label_logprobs", "float32", (count,)),
        ("label_is_argmax", "label_is_argmax", "float32", (count,)),
    ]
    assert [(value.name, value.role) for value in head.inputs] == [
        ("hidden", "activation"),
        ("head.weight", "weight"),
        ("label_tokens", "label_tokens"),
    ]
    hidden = torch.sin(torch.arange(count * WIDTH).float()).view(count, WIDTH)
    labels = torch.arange(count) * 3 % VOCAB
    logits = model.head(hidden)
    logprobs, is_argmax = head.module(hidden, model.head.weight, labels)
    expected = torch.log_softmax(logits, -1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(logprobs, expected)
    assert torch.equal(is_argmax, (logits.argmax(-1) == labels).float())
    assert 0 < is_argmax.sum() < count


def test_other_programs_stay() -> None:
    _, before = small([Layer()], "save_products", targets=TARGETS)
    _, after = small([Layer()], "score_labels", targets=TARGETS)
    assert list(before.programs) == list(after.programs)
    for name in set(before.programs) - {"head"}:
        assert str(before.programs[name].module.graph) == str(after.programs[name].module.graph)
