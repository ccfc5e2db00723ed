"""A Hugging Face model with LoRA adapters beside some of its layers, in plain PyTorch: what references run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Factors = Mapping[str, tuple[Tensor, Tensor]]
"""By module, A (in, rank) and B (rank, out)."""


class AdaptedModel:
    """The model with y = W x + scaling * x A B at every adapted layer.

    Args:
        model: its forward hooks are used, nothing else changes.
        scaling: alpha / rank.
    """

    def __init__(self, model: nn.Module, scaling: float) -> None:
        self.model = model
        self.scaling = scaling

    def loss(self, example: Any, kind: str, factors: Factors) -> Tensor:
        """The loss of one example (``candidates`` and ``target``), float64.

        ``full``: minus the mean over the right candidate's labels. ``choices``: the cross-entropy over the candidates.
        """
        if kind == "full":
            return -self.label_logprobs(example.candidates[example.target], factors).mean()
        scores = [self.label_logprobs(one, factors).sum() for one in example.candidates]
        return -torch.log_softmax(torch.stack(scores), 0)[example.target]

    def label_logprobs(self, candidate: Any, factors: Factors) -> Tensor:
        """Log-probability of each label of a candidate, float64 (labels,)."""
        tokens = torch.tensor([candidate.tokens])
        labels = torch.tensor(candidate.labels)
        with self.hooked(factors):
            logits = self.model(input_ids=tokens, use_cache=False).logits[0]
        chosen = labels >= 0
        logprobs = torch.log_softmax(logits[chosen].double(), -1)
        return logprobs.gather(1, labels[chosen][:, None])[:, 0]

    @contextlib.contextmanager
    def hooked(self, factors: Factors) -> Iterator[None]:
        """While inside, ``model`` has the adapters."""
        handles = []
        for name, (a, b) in factors.items():

            def add(
                _: nn.Module,
                inputs: tuple[Any, ...],
                output: Tensor,
                a: Tensor = a,
                b: Tensor = b,
            ) -> Tensor:
                return output + self.scaling * (inputs[0] @ a @ b)

            handles.append(self.model.get_submodule(name).register_forward_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
