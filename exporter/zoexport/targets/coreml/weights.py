"""Quantized weights of a function: packed constants that both directions of a stage read."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types

from zoexport.targets.coreml.values import FP16


@dataclasses.dataclass
class Packed:
    """A quantized weight (N, K).

    Attributes:
        name: of the tensor; functions that read it store it once.
        codes: int8 (N, K), of int4 from -8 to 7. scales: float32 (N, K/group), or (N, 1).
        four_bits: whether the codes are int4.
        kind: fp32 or fp16, that products compute in.
    """

    name: str
    codes: np.ndarray
    scales: np.ndarray
    four_bits: bool
    kind: object
    made: Var | None = None

    @staticmethod
    def of(name: str, codes: torch.Tensor, scales: torch.Tensor, kind: object) -> Packed:
        """Of what the passes give (docs/int4.md).

        Args:
            name: of the tensor. kind: fp32 or fp16.
            codes, scales: uint8 (N, K/2) and bfloat16 (N, K/G), or int8 (N, K) and float32 (N).
        """
        numbers = scales.float().numpy()
        if codes.dtype == torch.int8:
            return Packed(name, codes.numpy(), numbers[:, None], False, kind)
        pairs = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1)
        return Packed(name, (pairs.to(torch.int8) - 8).numpy(), numbers, True, kind)

    def var(self) -> Var:
        """The weight in the function that is being built, one constant however many read it."""
        if self.made is None:
            codes = self.codes.astype(types.np_int4_dtype) if self.four_bits else self.codes
            scale = self.scales.astype(np.float16 if self.kind == FP16 else np.float32)
            self.made = mb.constexpr_blockwise_shift_scale(data=codes, scale=scale)
            self.made.op.data.op.weight_id = f"{self.name}.codes"
            self.made.op.scale.op.weight_id = f"{self.name}.scales.{scale.dtype}"
        return self.made
