"""Weights of a function: constants by name, which both directions of a stage read and a package stores once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import Var, types
from numpy.typing import NDArray

from zoexport.core import int4
from zoexport.targets.coreml.values import FP16, numbers


@dataclasses.dataclass(frozen=True)
class Place:
    """Location of a weight in a function.

    Attributes:
        operation: its name. argument: its argument, ``val`` for a plain constant.
        weight: the name of the program's input.
    """

    operation: str
    argument: str
    weight: str


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a function.

    Attributes:
        values: by the names of the program's inputs.
        names: what these are called in the package, by the same; functions store what they share once.
        kind: fp32 or fp16, that products compute in.
    """

    values: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    kind: Any

    def stored(self, name: str) -> NDArray[Any]:
        """What is stored of an input: of int4, codes of 4 bits (N, K) and scales (N, K/G); of int8, scales (N, 1)."""
        value = self.values[name]
        if self.is_codes(name):
            return _unpacked(value)
        if self.is_scales(name):
            scales = value.float().numpy()
            scales = scales[:, None] if scales.ndim == 1 else scales
            return scales.astype(np.float16 if self.kind == FP16 else np.float32)
        return numbers(value, self.kind)

    def identity(self, name: str) -> str:
        """Return the key of a stored weight in a package."""
        return f"{self.names[name]}.{types.builtin_to_string(self.kind)}"

    def is_codes(self, name: str) -> bool:
        """Return whether an input contains quantized values (docs/formats.md)."""
        weight, _, part = name.rpartition(".")
        return part == "codes" and f"{weight}.scales" in self.values

    def is_scales(self, name: str) -> bool:
        """Return whether an input contains the scales of a quantized weight."""
        weight, _, part = name.rpartition(".")
        return part == "scales" and f"{weight}.codes" in self.values


@dataclasses.dataclass
class Packed:
    """Quantized weight (N, K) of the function that is being built.

    Attributes:
        weights: the function's weights. name: input with the quantized values. operation: its name.
        places: list that receives the weight's places when the weight is read.
    """

    weights: Weights
    name: str
    operation: str
    places: list[Place]
    made: Var | None = None

    def var(self) -> Var:
        """Return the weight as one constant that all readers share."""
        if self.made is None:
            scales = f"{self.name.removesuffix('.codes')}.scales"
            self.made = mb.constexpr_blockwise_shift_scale(
                data=self.weights.stored(self.name),
                scale=self.weights.stored(scales),
                name=self.operation,
            )
            self.made.op.data.op.weight_id = self.weights.identity(self.name)
            self.made.op.scale.op.weight_id = self.weights.identity(scales)
            self.places.append(Place(self.operation, "data", self.name))
            self.places.append(Place(self.operation, "scale", scales))
        return self.made


def _unpacked(codes: torch.Tensor) -> NDArray[Any]:
    """int8 (N, K) as it is; uint8 (N, K/2), two codes of int4 in each byte, as (N, K)."""
    if codes.dtype == torch.int8:
        return codes.numpy()
    return int4.unpack_int4(codes).numpy().astype(types.np_int4_dtype)
