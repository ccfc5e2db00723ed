"""QuZO in plain PyTorch, written from the paper (equations 5, 8 and 13 to 15.

See docs/noise.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from zoexport.core import grid, int4
from zoexport.methods.quzo import QuzoConfig
from zoexport.methods.reference.adapted import Added, lora
from zoexport.methods.reference.zeroth_order import ZerothOrderReference

_CODES = ".codes"
_LIMITS = {torch.uint8: (-8, 7), torch.int8: (-127, 127)}


class QuzoReference(ZerothOrderReference):
    """Zeroth-order training of the integers of linear weights; the masters are int8 (N, K).

    Args:
        model: Hugging Face model with the bundle's weights, quantized and dequantized; its layers
            get the trained integers, perturbed or not, times their scales.
        config: settings of the bundle.
        slots: ``quzo.table``; ``<parameter>.codes`` in the order of their tensor ids, uint8 (N,
            K/2) or int8 (N, K); and ``scales.<parameter>``, (N, groups) or (N). The parameters are
            the model's, or ``<module>.lora_A.weight`` (rank, in) and ``<module>.lora_B.weight``
            (out, rank) of adapters.
    """

    def __init__(self, model: nn.Module, config: QuzoConfig, slots: Mapping[str, Tensor]) -> None:
        codes = {name: value for name, value in slots.items() if name.endswith(_CODES)}
        super().__init__(model, config, {name: _integers(value) for name, value in codes.items()})
        self.table = slots["quzo.table"].numpy()
        self.limits = {name: _LIMITS[value.dtype] for name, value in codes.items()}
        self.scales = {
            name: slots[f"scales.{name.removesuffix(_CODES)}"].float().view(len(value), -1)
            for name, value in codes.items()
        }

    def perturbed(self, query: int, sign: float) -> dict[str, Tensor]:
        """Return the perturbed integers of all parameters: clamp(w + sign * Q1(u)) (eq. 8)."""
        return {
            name: (value + int(sign) * self.noise(name, query, self.step_number).int()).clamp(
                *self.limits[name]
            )
            for name, value in self.masters.items()
        }

    def updated(self, name: str, gradients: Sequence[float], learning_rate: float) -> Tensor:
        """Return the updated integers clamp(w - sum over queries of S(c_i Q2(u_i))) (equation 15).

        With update=summed: clamp(w - S(sum over queries of c_i Q2(u_i))) (equation 13).
        """
        codes = grid.update_codes(
            self.masters[name].numpy(),
            *self.limits[name],
            gradients=gradients,
            learning_rate=learning_rate,
            eps=self.config.eps,
            table=self.table,
            seed=self.config.seed,
            tensor_id=list(self.masters).index(name),
            step=self.step_number - 1,
            second=self.config.estimator == "q-rge2",
            summed=self.config.update == "summed",
        )
        return torch.from_numpy(codes)

    def noise(self, name: str, query: int, step: int) -> Tensor:
        """Return Q1(u) of one parameter, query and step: int8 (N, K) (equation 5)."""
        value = self.masters[name]
        number = list(self.masters).index(name)
        seed = self.config.seed
        first, _ = grid.draw_pairs(self.table, seed, number, query, step, value.numel())
        return torch.from_numpy(first).view_as(value)

    def added(self, values: Mapping[str, Tensor]) -> Added:
        """Set the trained weights in the model.

        Adapters are returned as additions to layer outputs.
        """
        weights = {
            name.removesuffix(_CODES): self._weight(name, value) for name, value in values.items()
        }
        if self.config.train == "lora":
            return lora(
                {_lora_name(name): weight.T for name, weight in weights.items()}, self.config
            )
        for name, weight in weights.items():
            self.adapted.model.get_parameter(name).data = weight
        return {}

    def _weight(self, name: str, integers: Tensor) -> Tensor:
        """Return the integers times their scales, float32 (N, K)."""
        scale = self.scales[name]
        groups = integers.float().view(len(integers), scale.shape[1], -1)
        return (groups * scale[:, :, None]).view(integers.shape)


def _integers(codes: Tensor) -> Tensor:
    return codes if codes.dtype == torch.int8 else int4.unpack_int4(codes)


def _lora_name(parameter: str) -> str:
    """Return ``lora_A.<module>`` for ``<module>.lora_A.weight``."""
    module, half, _ = parameter.rsplit(".", 2)
    return f"{half}.{module}"
