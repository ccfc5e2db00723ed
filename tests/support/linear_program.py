"""The model of ``bundles`` as an ExecuTorch program, and a bundle of it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from executorch.exir import EdgeCompileConfig, to_edge

import zoexport.ir.ops  # noqa: F401  (declares the operators)
from tests.support import bundles
from tests.support.bundles import SLOT, LinearModel

QUERIES, ROWS, SEQ, MAX_LABELS = 2, 2, 8, 10


class Program(torch.nn.Module):
    """LinearModel as a program: without noise inputs it evaluates."""

    def __init__(self) -> None:
        super().__init__()
        model = LinearModel()
        self.register_buffer("embedding", torch.tensor(model.embedding, dtype=torch.float32))
        self.register_buffer("output", torch.tensor(model.output, dtype=torch.float32))

    def forward(self, tokens: Any, positions: Any, labels: Any, b: Any, a: Any, *noise: Any) -> Any:
        if not noise:
            return self.label_logprobs(tokens, positions, labels, b[None], a)
        seed, step, gradients, rate, eps = noise
        ops = torch.ops.zoexport
        updated = ops.zo_update(b, gradients, rate, seed, step, bundles.TENSOR_ID)
        copies = ops.zo_perturb(updated, eps, seed, step, bundles.TENSOR_ID, QUERIES)
        return self.label_logprobs(tokens, positions, labels, copies, a)[0], updated

    def label_logprobs(self, tokens: Any, positions: Any, labels: Any, copies: Any, a: Any) -> Any:
        mean = torch.tril(torch.ones(SEQ, SEQ)) / torch.arange(1, SEQ + 1)[:, None]
        hidden = torch.matmul(mean, self.embedding[tokens]).reshape(ROWS * SEQ, -1)
        hidden = torch.index_select(hidden, 0, positions)
        logits = hidden @ self.output + torch.matmul(hidden @ a, copies)
        logprobs = torch.log_softmax(logits, dim=-1)
        index = labels[None, :, None].expand(copies.shape[0], -1, 1)
        picked = torch.gather(logprobs, 2, index)[:, :, 0]
        return picked, (logits.argmax(dim=-1) == labels).to(torch.float32)


def export(with_noise: bool) -> Any:
    entries = torch.export.Dim("entries", min=2, max=MAX_LABELS)
    values = bundles.initial_values()
    inputs: list[Any] = [
        torch.zeros(ROWS, SEQ, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
        torch.tensor(values[SLOT]),
        torch.tensor(values[bundles.FROZEN]),
    ]
    fixed: list[Any] = [None, {0: entries}, {0: entries}, None, None]
    noise: list[Any] = []
    if with_noise:
        noise = [
            torch.tensor([7]),
            torch.tensor([1]),
            torch.ones(QUERIES),
            torch.tensor([0.5]),
            torch.tensor([0.01]),
        ]
    return torch.export.export(
        Program(),
        (*inputs, *noise),
        dynamic_shapes=(*fixed, *([(None,) * len(noise)] if noise else [])),
    )


@functools.cache
def compiled() -> bytes:
    """The program's file."""
    lowered = to_edge(
        {"train": export(True), "evaluate": export(False)},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_executorch()
    return bytes(lowered.buffer)


def write(folder: Path) -> Path:
    """Write the bundle; gives ``folder``."""
    return bundles.write_bundle(
        folder,
        num_queries=QUERIES,
        rows=ROWS,
        max_length=SEQ,
        max_labels=MAX_LABELS,
        min_labels=2,
        engine="executorch",
        program=compiled(),
        changes={"required_ops": ["zoexport::zo_update.out", "zoexport::zo_perturb"]},
    )
