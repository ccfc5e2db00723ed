"""A Hugging Face model with something trained beside some of its layers, in plain PyTorch: what references run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zoexport.core import rng
from zoexport.core.encoders import model_inputs
from zoexport.core.settings import LoraSettings, TrainingSettings

LORA_B = "lora_B."
"""Begins the names of adapters' second matrices."""
Added = Mapping[str, Callable[[Tensor], Tensor]]
"""By module, what is added to its output as a function of its input."""


@dataclasses.dataclass(frozen=True)
class Dropped:
    """What of adapters' inputs a step leaves out in an example (docs/rng.md, "Dropout").

    Attributes:
        share: p, of the inputs. seed: of the run. step: counts from 0. example: its number in the step.
    """

    share: float
    seed: int
    step: int
    example: int

    def factors(self, number: int, like: Tensor) -> Tensor:
        """0 or 1 / (1 - p) for each element of the input of an adapter, whose second matrix has this tensor id."""
        stream = self.seed, rng.DROPOUT | number, self.example, self.step
        kept = rng.kept(*stream, like.numel(), self.share)
        return torch.from_numpy(kept).view_as(like).to(like.dtype)


def low_rank(
    a: Tensor, b: Tensor, scaling: float, drop: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Tensor], Tensor]:
    """What LoRA adds: scaling * x A B, with A (in, rank), B (rank, out) and x times what ``drop`` makes of it."""
    return lambda x: scaling * ((x if drop is None else x * drop(x)) @ a @ b)


def lora(
    slots: Mapping[str, Tensor], config: LoraSettings, dropped: Dropped | None = None
) -> Added:
    """The adapter of every layer that has an ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out).

    Args:
        slots: in the order of their tensor ids. dropped: of a step that trains; None where nothing is left out.
    """
    modules = [name.removeprefix(LORA_B) for name in slots if name.startswith(LORA_B)]
    return {
        module: low_rank(
            slots[f"lora_A.{module}"],
            slots[f"{LORA_B}{module}"],
            config.scaling.scale_of(module),
            None if dropped is None else functools.partial(dropped.factors, number),
        )
        for number, module in enumerate(modules)
    }


class AdaptedModel:
    """The model with y = W x + added(x) at some layers.

    Args:
        model: its forward hooks are used, nothing else changes.
        run: what is called in its place.
    """

    def __init__(self, model: nn.Module, run: nn.Module | None = None) -> None:
        self.model = model
        self.run = run or model

    def loss(
        self,
        example: Any,
        config: TrainingSettings,
        added: Added,
        reference: Sequence[Tensor] = (),
    ) -> Tensor:
        """The loss of one example (``candidates`` and ``target``), float64.

        ``full``: minus the mean over the right candidate's labels. ``choices``: the cross-entropy over the candidates'
        sums, or means, of log-probabilities.
        Of pairs, in which the target is the chosen answer, ``dpo`` is equation 7 of Rafailov et al., "Direct Preference
        Optimization" (2023), and ``orpo`` equations 6 and 7 of Hong et al., "ORPO: Monolithic Preference Optimization
        without Reference Model" (2024), whose lambda is ``orpo.beta``.

        Args:
            reference: of ``dpo``, the candidates' :meth:`scores` under the reference model.
        """
        right = example.target
        if config.loss == "full":
            return -self.label_logprobs(example.candidates[right], added).mean()
        if config.loss == "choices":
            scores = torch.stack(self.scores(example, added))
            if config.choices == "mean":
                labels = [sum(label >= 0 for label in one.labels) for one in example.candidates]
                scores = scores / torch.tensor(labels)
            return -torch.log_softmax(scores, 0)[right]
        wrong = 1 - right
        if config.loss == "dpo":
            ratios = [
                now - before
                for now, before in zip(self.scores(example, added), reference, strict=True)
            ]
            return -nn.functional.logsigmoid(config.dpo_beta * (ratios[right] - ratios[wrong]))
        means = [self.label_logprobs(one, added).mean() for one in example.candidates]
        odds = [mean - torch.log(-torch.expm1(mean)) for mean in means]
        return -means[right] - config.orpo_beta * nn.functional.logsigmoid(
            odds[right] - odds[wrong]
        )

    def scores(self, example: Any, added: Added) -> list[Tensor]:
        """The sum of the log-probabilities of each candidate's labels, float64."""
        return [self.label_logprobs(one, added).sum() for one in example.candidates]

    def label_logprobs(self, candidate: Any, added: Added) -> Tensor:
        """Log-probability of each label of a candidate, float64 (labels,)."""
        tokens = torch.tensor([candidate.tokens])
        labels = torch.tensor(candidate.labels)
        with self.hooked(added):
            logits = self.run(**model_inputs(self.model, tokens)).logits[0]
        chosen = labels >= 0
        logprobs = torch.log_softmax(logits[chosen].double(), -1)
        return logprobs.gather(1, labels[chosen][:, None])[:, 0]

    @contextlib.contextmanager
    def hooked(self, added: Added) -> Iterator[None]:
        """While inside, ``model`` has what is trained beside it."""
        handles = []
        for name, of in added.items():

            def add(
                _: nn.Module,
                inputs: tuple[Any, ...],
                output: Tensor,
                of: Callable[[Tensor], Tensor] = of,
            ) -> Tensor:
                return output + of(inputs[0])

            handles.append(self.model.get_submodule(name).register_forward_hook(add))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
