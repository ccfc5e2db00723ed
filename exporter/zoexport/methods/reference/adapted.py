"""Hugging Face model with trained additions to some layers, in plain PyTorch.

The references run it.
"""

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
"""Prefix of the names of adapters' second matrices."""
Added = Mapping[str, Callable[[Tensor], Tensor]]
"""Addition to the output of each module, as a function of its input."""


@dataclasses.dataclass(frozen=True)
class Dropped:
    """Dropout of the adapters' inputs for one example of a step (docs/noise.md, "Dropout").

    Attributes:
        share: p, the dropped share of the inputs. seed: seed of the run. step: step number, from 0.
        example: number of the example in the step.
    """

    share: float
    seed: int
    step: int
    example: int

    def factors(self, number: int, like: Tensor) -> Tensor:
        """Return 0 or 1 / (1 - p) per element of an adapter's input.

        ``number``: tensor id of its second matrix.
        """
        stream = self.seed, rng.DROPOUT | number, self.example, self.step
        kept = rng.kept(*stream, like.numel(), self.share)
        return torch.from_numpy(kept).view_as(like).to(like.dtype)


def low_rank(
    a: Tensor, b: Tensor, scaling: float, drop: Callable[[Tensor], Tensor] | None = None
) -> Callable[[Tensor], Tensor]:
    """Return LoRA's addition, scaling * x A B, with A (in, rank) and B (rank, out).

    X is multiplied by ``drop(x)``.
    """
    return lambda x: scaling * ((x if drop is None else x * drop(x)) @ a @ b)


def lora(
    slots: Mapping[str, Tensor], config: LoraSettings, dropped: Dropped | None = None
) -> Added:
    """Return all adapters: ``lora_A.<module>`` (in, rank), ``lora_B.<module>`` (rank, out).

    Args:
        slots: parameters in the order of their tensor ids. dropped: dropout of a training step, or
            None.
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
    """Model with y = W x + added(x) at some layers.

    Args:
        model: the model; only its forward hooks are changed.
        run: module to call instead of ``model``.
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
        """Return the loss of one example (``candidates`` and ``target``), float64.

        ``full``: minus the mean over the right candidate's labels. ``choices``: the cross-entropy over the candidates'
        sums, or means, of log-probabilities.
        For pairs, whose target is the chosen response, ``dpo`` is equation 7 of Rafailov et al.,
        "Direct Preference Optimization" (2023), and ``orpo`` is equations 6 and 7 of Hong et al.,
        "ORPO: Monolithic Preference Optimization without Reference Model" (2024), whose lambda is
        ``orpo.beta``.

        Args:
            reference: for ``dpo``, the :meth:`scores` of the candidates under the reference model.
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
        """Return the sum of the labels' log-probabilities for each candidate, float64."""
        return [self.label_logprobs(one, added).sum() for one in example.candidates]

    def label_logprobs(self, candidate: Any, added: Added) -> Tensor:
        """Return the log-probability of each label of a candidate, float64 (labels,)."""
        tokens = torch.tensor([candidate.tokens])
        labels = torch.tensor(candidate.labels)
        with self.hooked(added):
            logits = self.run(**model_inputs(self.model, tokens)).logits[0]
        chosen = labels >= 0
        logprobs = torch.log_softmax(logits[chosen].double(), -1)
        return logprobs.gather(1, labels[chosen][:, None])[:, 0]

    @contextlib.contextmanager
    def hooked(self, added: Added) -> Iterator[None]:
        """Add ``added`` to the layers of ``model`` inside the context."""
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
