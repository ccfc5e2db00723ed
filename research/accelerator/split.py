"""SPZO: all weights of a model in two blocks, each with directions of its own (FedSPZO 3.2.2, equations 6 to 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from research.accelerator.llama import EMBEDDING, HEAD, NORM, Llama, Own, Weights
from research.accelerator.runs import Lane, Runs
from research.accelerator.tasks import Task
from research.accelerator.trained import Everything


class Split(Runs):
    """P1 directions of the layers, and P2 of the head for each side of one; the head is called on what layers gave.

    A tied embedding is moved in the second block alone: the first reads it as it is.

    Args:
        config: with ``directions``, P1 and P2.
    """

    def __init__(self, model: Llama, task: Task, lanes: Sequence[Lane], config: Any) -> None:
        super().__init__(model, task, lanes, config)
        late = {NORM, HEAD if HEAD in model.parameters else EMBEDDING}
        first, second = config.directions
        self.blocks = (
            Everything(model, [name for name in model.parameters if name not in late]),
            Everything(model, [name for name in model.parameters if name in late]),
        )
        self.values = [block.initial.repeat(len(lanes), 1) for block in self.blocks]
        self.noise = [
            block.noise(self._seeds, count, signs=False)
            for block, count in zip(self.blocks, (first, 2 * first * second), strict=True)
        ]

    @torch.no_grad()
    def step(self) -> Tensor:
        """The 4 P1 P2 losses of every direction of the second block, plus and minus."""
        first, second = self._config.directions
        z = [noise(self.steps) for noise in self.noise]
        batch = self._batch()
        head_as_it_is = self.blocks[1].parts(self.values[1])
        losses = []
        for i in range(first):
            for side, sign in enumerate((1, -1)):
                layers = self.blocks[0].parts(self._moved(0, z, i, sign))
                hidden = self._model.body(Own({}, {**layers, **head_as_it_is}), batch.tokens)
                for j in range(second):
                    for late in (1, -1):
                        head = self.blocks[1].parts(
                            self._moved(1, z, (2 * i + side) * second + j, late)
                        )
                        weights = Own({}, {**layers, **head})
                        losses.append(self.task.losses(self._model, weights, batch, hidden))
        found = torch.stack(losses, 1).double()
        means = found.view(len(found), 2 * first, 2 * second).mean(-1)
        for number, pairs in enumerate((means, found)):
            self._update(number, self._central(pairs), z[number])
        self.steps += 1
        return found

    def weights(self) -> Weights:
        """Both blocks', not perturbed."""
        parts = [
            block.parts(values) for block, values in zip(self.blocks, self.values, strict=True)
        ]
        return Own({}, {**parts[0], **parts[1]})

    def _moved(self, block: int, z: Sequence[Tensor], number: int, sign: int) -> Tensor:
        directions = self._along(z[block], number)
        return self.blocks[block].moved(self.values[block], directions, sign * self._config.eps)

    def _update(self, block: int, gradients: Tensor, z: Tensor) -> None:
        """By the mean of g z over the block's own directions."""
        for lane, own in enumerate(self._own.tolist()):
            estimate = gradients[lane] @ z[own] / len(gradients[lane])
            self.values[block][lane] -= self._rates[lane] * estimate
