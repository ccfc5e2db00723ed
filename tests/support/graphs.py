"""Small training graphs for tests of passes and rules."""

from __future__ import annotations

import types
from collections import Counter

import torch
from torch import nn

from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.capture import capture

VOCAB, WIDTH, SEQ = 11, 32, 6


class SmallModel(nn.Module):
    """An embedding, a body given by the test, and an output head."""

    def __init__(self, body: nn.Module, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.body = body
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        for number, parameter in enumerate(self.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float64) * (0.7 + 0.1 * number)
            parameter.data = (values.sin() / WIDTH**0.5).float().view_as(parameter)

    def get_input_embeddings(self) -> nn.Embedding:
        """As transformers models have it."""
        return self.embed

    def get_output_embeddings(self) -> nn.Linear:
        """As transformers models have it."""
        return self.head

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> types.SimpleNamespace:
        """Logits (rows, seq, VOCAB)."""
        return types.SimpleNamespace(logits=self.head(self.body(self.embed(input_ids))))


def captured(body: nn.Module, *, tied: bool = False) -> tuple[SmallModel, TrainingGraph]:
    """A small model around ``body`` and its captured graph."""
    model = SmallModel(body, tied=tied).eval()
    return model, capture(model, SEQ)


def operators(program: Program) -> Counter[str]:
    """How often each operator is called."""
    return Counter(
        str(node.target) for node in program.module.graph.nodes if node.op == "call_function"
    )


def tokens(rows: int) -> torch.Tensor:
    """int64 (rows, SEQ) over the whole vocabulary."""
    return (torch.arange(rows * SEQ).view(rows, SEQ) * 7 + 3) % VOCAB


def label_inputs(rows: int) -> dict[str, torch.Tensor]:
    """Tokens, and labels at the first and last position of ``rows`` sequences and between, for ``evaluate``."""
    positions = torch.tensor([0, SEQ - 1, SEQ + 2, 3 * SEQ - 1])
    labels = torch.tensor([0, VOCAB - 1, 4, 5])
    kept = positions.less(rows * SEQ)
    return {
        "tokens": tokens(rows),
        "label_positions": positions[kept],
        "label_tokens": labels[kept],
    }


def label_logits(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the model itself gives at the label positions: (labels, VOCAB)."""
    logits: torch.Tensor = model(inputs["tokens"]).logits
    return logits.reshape(-1, VOCAB)[inputs["label_positions"]]


def label_logprobs_of(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The log-probability of each label under ``label_logits``: (1, labels)."""
    return torch.log_softmax(logits, -1).gather(1, inputs["label_tokens"][:, None]).T
