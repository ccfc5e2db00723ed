"""8-bit grids that the inputs of linear layers are rounded to (docs/formats.md, "Activation grids").

Every value x of a layer's input is rounded with the same few numbers, known before anything runs:

    |x| <= threshold    INT8   clamp(round(x / scale), -127, 127) scale
    otherwise           FP8    E4M3(x / float_scale) float_scale

All arithmetic is float32, one rounding an operation, and halves are rounded to even;
``runtime_ops/kernels/activations.h`` has the same bits. E4M3 has 4 bits of exponent and 3 of mantissa, subnormal
numbers, no infinity, and 448 as its largest number, which greater ones become. A NaN stays one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import torch
from torch import Tensor

INT8, FP8, HYBRID = "int8", "fp8", "int8+fp8"
LARGEST_STEP = 127
"""-128 is no value: QuZO, appendix B.3, marks outliers with it."""
LARGEST_FLOAT = 448.0
LEAST_NORMAL = 2.0**-6
_LEAST_SCALE = 2.0**-100
"""The scale of inputs that are (nearly) zero everywhere, so that no quotient overflows before it is clamped."""
EXPONENT = 0x7F800000
ROUNDS_TO_3_BITS = 2.0**20
"""2^e times this has the last place 2^(e-3): what is added to it is rounded to 3 bits of mantissa below 2^e's."""


@dataclasses.dataclass(frozen=True)
class Format:
    """Quantization format of one layer's input; all numbers are float32.

    Attributes:
        threshold: the largest magnitude that is INT8: infinity, a negative number, or between.
        scale: the value of an INT8 step. float_scale: the value of E4M3's 1.
    """

    threshold: float
    scale: float
    float_scale: float

    @property
    def kind(self) -> str:
        """:data:`INT8`, :data:`FP8`, or :data:`HYBRID`: INT8 with FP8 outliers."""
        if self.threshold == math.inf:
            return INT8
        return FP8 if self.threshold < 0 else HYBRID

    def tensor(self) -> Tensor:
        """float32 (3), as :func:`rounded` and ``zoexport::round_activations`` take it."""
        return torch.tensor([self.threshold, self.scale, self.float_scale])

    def largest(self) -> float:
        """Return the largest representable magnitude."""
        return LARGEST_STEP * self.scale if self.kind == INT8 else LARGEST_FLOAT * self.float_scale


def int8(largest: float) -> Format:
    """INT8 up to ``largest`` (appendix B: one static scale a tensor)."""
    return Format(math.inf, _scale(largest / LARGEST_STEP), 1.0)


def fp8(largest: float) -> Format:
    """E4M3 with a scale that makes ``largest`` its largest number (appendix B.2)."""
    return Format(-1.0, 1.0, _scale(largest / LARGEST_FLOAT))


def hybrid(threshold: float, largest: float) -> Format:
    """INT8 up to ``threshold`` > 0, and E4M3 above with the exponent bias that just reaches ``largest`` (B.3)."""
    fraction, exponent = math.frexp(largest / LARGEST_FLOAT)
    bias = 2.0 ** (exponent - (fraction == 0.5))
    return Format(float(_f32(threshold)), _scale(threshold / LARGEST_STEP), max(bias, _LEAST_SCALE))


def with_outliers(x: Tensor, ratio: float) -> Format:
    """Return INT8 with FP8 for the share ``ratio`` of largest magnitudes (appendix B.3).

    The threshold is a quantile of ``x``. If it is zero (as nearly all values are), no INT8 grid
    exists below it, and all values are INT8.
    """
    magnitudes = x.abs().flatten()
    kept = magnitudes.numel() - int(ratio * magnitudes.numel())
    threshold = float(magnitudes.kthvalue(kept).values)
    largest = float(magnitudes.max())
    return hybrid(threshold, largest) if threshold > 0 else int8(largest)


def fit(x: Tensor, *, outliers: float, search: bool) -> Format:
    """Return the quantization format of a layer's inputs.

    Args:
        x: calibration inputs, float32, any shape, not empty. outliers: share of FP8 values, or 0.
        search: whether to also try FP8 for all values, and to use it if its error is smaller.
    """
    largest = float(x.abs().max())
    first = with_outliers(x, outliers) if outliers else int8(largest)
    return best(x, [first, fp8(largest)]) if search else first


def best(x: Tensor, formats: Iterable[Format]) -> Format:
    """Return the first format with the smallest :func:`squared_error` on ``x`` (appendix B.2)."""
    return min(formats, key=lambda format: squared_error(x, format))


def squared_error(x: Tensor, format: Format) -> float:
    """E[(x - Q(x))^2] over the elements of ``x`` (appendix B.2, equation 17)."""
    difference = x - rounded(x, format.tensor())
    return float(difference.square_().mean(dtype=torch.float64))


def rounded(x: Tensor, format: Tensor) -> Tensor:
    """Quantize every element: float32, shape of ``x``. An INT8 zero has no sign.

    Args:
        x: float32, any shape. format: of :meth:`Format.tensor`.
    """
    threshold, scale, float_scale = format
    steps = (x / scale).clamp_(-LARGEST_STEP, LARGEST_STEP).round_() + 0.0
    if threshold == math.inf:
        return steps.mul_(scale)
    floats = e4m3(x / float_scale).mul_(float_scale)
    return torch.where(x.abs() <= threshold, steps.mul_(scale), floats)


def e4m3(x: Tensor) -> Tensor:
    """Round to the nearest E4M3 numbers, as float32."""
    magnitude = x.abs().clamp_(max=LARGEST_FLOAT)
    power = (magnitude.view(torch.int32) & EXPONENT).view(torch.float32)
    shift = power.clamp_(min=LEAST_NORMAL).mul_(ROUNDS_TO_3_BITS)
    return magnitude.add_(shift).sub_(shift).copysign_(x)


def _scale(value: float) -> float:
    return float(_f32(max(value, _LEAST_SCALE)))


def _f32(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32)
