"""What runs train and are evaluated on: tokens in memory, in the order that a session takes them (docs/formats.md)."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from research.accelerator.llama import Llama, Weights
from zoexport.core import rng

_TOKENS = 1 << 15
"""In one forward pass of an evaluation."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of several groups.

    Attributes:
        tokens: int64 (groups, rows, length). ends: the last token's place (groups, rows).
        right: the right choice's number (groups, rows); nothing of it is read where there are no choices.
    """

    tokens: Tensor
    ends: Tensor
    right: Tensor

    def of(self, chosen: Tensor) -> Batch:
        """The groups of these numbers."""
        return Batch(self.tokens[chosen], self.ends[chosen], self.right[chosen])

    def repeated(self, copies: int) -> Batch:
        """Each group so many times in a row."""
        groups = torch.arange(len(self.tokens), device=self.tokens.device)
        return self.of(groups.repeat_interleave(copies))


@dataclasses.dataclass(frozen=True)
class Part:
    """Examples: tokens int64 (n, length) with zeros behind, how many each has (n), and the right choice (n)."""

    tokens: Tensor
    lengths: Tensor
    right: Tensor


class Task(abc.ABC):
    """A loss, and examples.

    Args:
        parts: ``train``, and others to evaluate on, on the CPU.
        device: where batches are.
    """

    def __init__(self, parts: Mapping[str, Part], device: torch.device) -> None:
        self._parts, self._device = parts, device
        self._orders: dict[tuple[int, int], Tensor] = {}

    @abc.abstractmethod
    def predicted(
        self, model: Llama, weights: Weights, hidden: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Loss of each row, and share of right predictions (groups, rows).

        Args:
            hidden: what the model's body gives (groups, rows, length, width).
        """

    def losses(
        self, model: Llama, weights: Weights, batch: Batch, hidden: Tensor | None = None
    ) -> Tensor:
        """Means over rows (groups), also of what a body gave that was called with other weights."""
        if hidden is None:
            hidden = model.body(weights, batch.tokens)
        return self.predicted(model, weights, hidden, batch)[0].mean(1)

    def batch(self, seeds: Sequence[int], step: int, size: int) -> Batch:
        """The examples of a step, a group a seed."""
        return self._rows("train", torch.stack([self._order(seed, step, size) for seed in seeds]))

    def evaluated(
        self, model: Llama, weights: Weights, groups: int, name: str
    ) -> tuple[list[float], list[float]]:
        """Means over a part's examples of ``predicted``, by group."""
        part = self._parts[name]
        # Rows of about one length together, as all are as long as the longest.
        order = part.lengths.argsort()
        count = max(1, _TOKENS // (groups * part.tokens.shape[1]))
        total = torch.zeros(2, groups, dtype=torch.float64, device=self._device)
        for chosen in order.split(count):
            batch = self._rows(name, chosen[None]).repeated(groups)
            hidden = model.body(weights, batch.tokens)
            found = self.predicted(model, weights, hidden, batch)
            total += torch.stack([one.double().sum(1) for one in found])
        loss, right = (total / len(order)).tolist()
        return loss, right

    def _rows(self, name: str, chosen: Tensor) -> Batch:
        part = self._parts[name]
        lengths = part.lengths[chosen]
        tokens = part.tokens[chosen][..., : int(lengths.max())]
        found = Batch(tokens, lengths - 1, part.right[chosen])
        return Batch(*(getattr(found, f.name).to(self._device) for f in dataclasses.fields(found)))

    def _order(self, seed: int, step: int, size: int) -> Tensor:
        n = len(self._parts["train"].tokens)
        places = range(step * size, (step + 1) * size)
        return torch.tensor([int(self._epoch(seed, place // n)[place % n]) for place in places])

    def _epoch(self, seed: int, epoch: int) -> Tensor:
        key = seed, epoch
        if key not in self._orders:
            count = len(self._parts["train"].tokens)
            self._orders[key] = torch.from_numpy(rng.permutation(seed, epoch, count))
        return self._orders[key]


class Choices(Task):
    """One of some tokens after a prompt: the cross-entropy over them alone (``loss=choices``).

    Args:
        choices: the tokens, the same for all examples.
    """

    def __init__(
        self, parts: Mapping[str, Part], device: torch.device, choices: Sequence[int]
    ) -> None:
        super().__init__(parts, device)
        self._choices = torch.tensor(choices, device=device)

    def predicted(
        self, model: Llama, weights: Weights, hidden: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """By the logits of the choices behind the last token."""
        places = batch.ends[:, :, None, None].expand(-1, -1, 1, hidden.shape[-1])
        last = hidden.gather(2, places).squeeze(2)
        logits = model.logits(weights, last, self._choices).double()
        found = functional.log_softmax(logits, -1).gather(-1, batch.right[..., None])
        return -found.squeeze(-1), (logits.argmax(-1) == batch.right).double()


class Text(Task):
    """Every next token of rows that are all as long (``loss=full``)."""

    def predicted(
        self, model: Llama, weights: Weights, hidden: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Means over a row's tokens."""
        hidden = hidden[:, :, :-1]
        labels = batch.tokens[:, :, 1:]
        groups, rows, length, width = hidden.shape
        logits = model.logits(weights, hidden.reshape(groups, rows * length, width))
        logits = logits.view(groups, rows, length, -1)
        found = logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(-1)
        return -found.double().mean(-1), (logits.argmax(-1) == labels).float().mean(-1)
