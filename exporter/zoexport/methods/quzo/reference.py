"""QuZO in plain PyTorch, written from the paper (equations 5, 8, 14 and 15) as docs/quzo.md reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zoexport.core import grid, int4
from zoexport.methods.adapted import AdaptedModel
from zoexport.methods.quzo.config import QuzoConfig

_CODES = ".codes"
_LIMITS = {"4": (-8, 7), "8": (-127, 127)}


class QuzoReference:
    """Zeroth-order training of the integers of linear weights.

    Args:
        model: the Hugging Face model with the bundle's weights, quantized and dequantized; its layers get the integers
            that are trained, perturbed or not, times their scales.
        config: of the bundle.
        slots: ``quzo.table``, and ``<parameter>.codes`` in the order of their numbers: uint8 (N, K/2) or int8 (N, K).
    """

    def __init__(self, model: nn.Module, config: QuzoConfig, slots: Mapping[str, Tensor]) -> None:
        self.adapted = AdaptedModel(model)
        self.config = config
        self.low, self.high = _LIMITS[str(config.weight_bits)]
        self.table = slots["quzo.table"].numpy()
        self.integers = {
            name: self._integers(codes) for name, codes in slots.items() if name.endswith(_CODES)
        }
        self.scales = {name: self._scales(name) for name in self.integers}
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

    def take(self, gradients: Sequence[float], learning_rate: float) -> None:
        """Let the pending update be that of another run's gradients."""
        self.pending = (list(gradients), learning_rate)

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
                self.low,
                self.high,
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
        for name, value in self.integers.items():
            moved = value + sign * self.noise(name, query, self.step_number).numpy().astype(int)
            self._set(name, moved.clip(self.low, self.high))
        with torch.no_grad():
            losses = [float(self.adapted.loss(example, self.config.loss, {})) for example in batch]
        return sum(losses) / len(batch)

    def _set(self, name: str, integers: NDArray[Any]) -> None:
        weight = self.adapted.model.get_parameter(name.removesuffix(_CODES))
        scale = self.scales[name]
        rows = torch.from_numpy(integers).float().view(len(integers), scale.shape[1], -1)
        weight.data = (rows * scale[:, :, None]).view(integers.shape)

    def _integers(self, codes: Tensor) -> NDArray[np.int8]:
        if self.config.weight_bits == "8":
            return codes.numpy().copy()
        return int4.unpack_int4(codes).numpy()

    def _scales(self, name: str) -> Tensor:
        """(N, groups) of a weight that has been quantized and dequantized, from both and its integers."""
        integers = self.integers[name]
        weight = self.adapted.model.get_parameter(name.removesuffix(_CODES)).detach()
        groups = (
            integers.shape[1] // self.config.group_size if self.config.weight_bits == "4" else 1
        )
        whole = torch.from_numpy(integers).view(len(integers), groups, -1).abs()
        largest, place = whole.max(-1)
        values = weight.view(whole.shape).abs().gather(-1, place[:, :, None])[:, :, 0]
        # Exact for INT4, where a product of scale and integer is (docs/int4.md), and to a rounding for INT8.
        return torch.where(largest > 0, values / largest.clamp(min=1), torch.zeros_like(values))
