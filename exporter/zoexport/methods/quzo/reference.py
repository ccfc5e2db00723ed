"""QuZO in plain PyTorch, written from the paper (equations 5, 8, 14 and 15) as docs/integers.md reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoexport.core import grid, int4
from zoexport.methods.adapted import AdaptedModel, Added, low_rank
from zoexport.methods.quzo.config import QuzoConfig

_CODES = ".codes"
_LIMITS = {torch.uint8: (-8, 7), torch.int8: (-127, 127)}


class QuzoReference:
    """Zeroth-order training of the integers of linear weights.

    Args:
        model: the Hugging Face model with the bundle's weights, quantized and dequantized; its layers get the integers
            that are trained, perturbed or not, times their scales.
        config: of the bundle.
        slots: ``quzo.table``; ``<parameter>.codes`` in the order of their numbers, uint8 (N, K/2) or int8 (N, K); and
            ``scales.<parameter>``, (N, groups) or (N). The parameters are the model's, or ``<module>.lora_A.weight``
            (rank, in) and ``<module>.lora_B.weight`` (out, rank) of adapters.
    """

    def __init__(self, model: nn.Module, config: QuzoConfig, slots: Mapping[str, Tensor]) -> None:
        self.adapted = AdaptedModel(model)
        self.config = config
        self.table = slots["quzo.table"].numpy()
        codes = {name: value for name, value in slots.items() if name.endswith(_CODES)}
        self.integers = {name: _integers(value) for name, value in codes.items()}
        self.limits = {name: _LIMITS[value.dtype] for name, value in codes.items()}
        self.scales = {
            name: slots[f"scales.{name.removesuffix(_CODES)}"].float().view(len(value), -1)
            for name, value in codes.items()
        }
        self.step_number = 0
        self.pending: tuple[list[float], float] | None = None

    def step(self, batch: Sequence[Any], learning_rate: float) -> dict[str, Any]:
        """One step on a batch of examples (objects with ``candidates`` and ``target``).

        Returns:
            ``losses`` (2q, in the order +1, -1, +2, ...), ``gradients`` (q, equation 14), and every slot's integers
            ``before`` and ``after`` the update that was pending from the step before.
        """
        before = self.values()
        self.finish()
        after = self.values()
        losses = [
            self._loss(batch, query, sign)
            for query in range(self.config.queries)
            for sign in (1, -1)
        ]
        gradients = [
            (losses[2 * query] - losses[2 * query + 1]) / (2 * self.config.eps)
            for query in range(self.config.queries)
        ]
        self.pending = (gradients, learning_rate)
        self.step_number += 1
        return {"losses": losses, "gradients": gradients, "before": before, "after": after}

    def follow(
        self, masters: Mapping[str, Tensor], gradients: Sequence[float], learning_rate: float
    ) -> None:
        """Let the pending update be that of another run's gradients; its integers are these ones already."""
        self.pending = (list(gradients), learning_rate) if gradients else None

    def values(self) -> dict[str, Tensor]:
        """Every slot's integers, (N, K)."""
        return {name: torch.from_numpy(value.copy()) for name, value in self.integers.items()}

    def finished(self) -> dict[str, Tensor]:
        """Every slot's integers, nothing pending."""
        self.finish()
        return self.values()

    def finish(self) -> None:
        """Apply the pending update: w <- clamp(w - sum over queries of S(c_i Q2(u_i))) (equation 15)."""
        if self.pending is None:
            return
        gradients, learning_rate = self.pending
        for number, (name, value) in enumerate(self.integers.items()):
            self.integers[name] = grid.update_codes(
                value,
                *self.limits[name],
                gradients=gradients,
                lr=learning_rate,
                eps=self.config.eps,
                table=self.table,
                seed=self.config.seed,
                tensor_id=number,
                step=self.step_number - 1,
                second=self.config.estimator == "q-rge2",
            )
        self.pending = None

    def noise(self, name: str, query: int, step: int) -> Tensor:
        """Q1(u) of one slot, query and step: (N, K)."""
        value = self.integers[name]
        number = list(self.integers).index(name)
        first, _ = grid.draw_pairs(self.table, self.config.seed, number, query, step, value.size)
        return torch.from_numpy(first.reshape(value.shape))

    def _loss(self, batch: Sequence[Any], query: int, sign: int) -> float:
        """The mean loss of a batch with every weight moved along one direction."""
        weights = {}
        for name, value in self.integers.items():
            moved = value + sign * self.noise(name, query, self.step_number).numpy().astype(int)
            weights[name.removesuffix(_CODES)] = self._weight(name, moved.clip(*self.limits[name]))
        added = self._placed(weights)
        with torch.no_grad():
            losses = [
                float(self.adapted.loss(example, self.config.loss, added)) for example in batch
            ]
        return sum(losses) / len(batch)

    def _placed(self, weights: Mapping[str, Tensor]) -> Added:
        """Put trained weights where the model reads them; those of adapters are added to what layers give."""
        if self.config.train == "full":
            for name, weight in weights.items():
                self.adapted.model.get_parameter(name).data = weight
            return {}
        scaling = self.config.lora_alpha / self.config.lora_rank
        return {
            module: low_rank(a.T, weights[f"{module}.lora_B.weight"].T, scaling)
            for module, a in _of_half(weights, "lora_A")
        }

    def _weight(self, name: str, integers: NDArray[Any]) -> Tensor:
        scale = self.scales[name]
        rows = torch.from_numpy(integers).float().view(len(integers), scale.shape[1], -1)
        return (rows * scale[:, :, None]).view(integers.shape)


def _integers(codes: Tensor) -> NDArray[np.int8]:
    return (codes if codes.dtype == torch.int8 else int4.unpack_int4(codes)).numpy().copy()


def _of_half(weights: Mapping[str, Tensor], half: str) -> list[tuple[str, Tensor]]:
    """Modules and matrices of one half of adapters."""
    end = f".{half}.weight"
    return [(name.removesuffix(end), w) for name, w in weights.items() if name.endswith(end)]
