"""Quantized weights in MLX's affine layout: w = scale * code + bias, codes lowest first in 32-bit words.

int4 (docs/formats.md): codes are q + 8 already, so only the words are new, and biases = -8 s; every weight is exact.
int8: codes q + 128 and, in the function that reads them, a row's scale repeated for each group and biases = -128 s;
weights are right to the last place of a row's greatest one.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import mlx.core as mx

GROUPS = (128, 64, 32)
"""The group sizes of MLX, the largest first."""
_WORD = torch.uint32
_DEPTH = 2048
_PANEL, _PANELS = 1 << 18, 16


def mlx_group(size: int) -> int | None:
    """Return the largest of MLX's groups that divides ``size``."""
    return next((group for group in GROUPS if size % group == 0), None)


def pack(codes: torch.Tensor, scales: torch.Tensor) -> dict[str, torch.Tensor]:
    """A quantized weight's rows as the bundle stores them, by part; works on tensors without values too.

    Args:
        codes: uint8 (N, K/2) of int4, or int8 (N, K).
        scales: bfloat16 (N, K/group), or float32 (N).

    Returns:
        ``codes`` uint32 (N, K/8), ``scales`` and ``biases`` bfloat16 (N, K/g) with g of MLX; of int8 ``codes`` uint32
        (N, K/4), or as they were where no group of MLX divides K, and ``scales``.
    """
    if codes.dtype == torch.uint8:
        group = 2 * codes.shape[1] // scales.shape[1]
        repeats = group // _required(group)
        repeated = scales.repeat_interleave(repeats, 1) if repeats > 1 else scales
        return {"codes": codes.view(_WORD), "scales": repeated, "biases": -8 * repeated}
    if mlx_group(codes.shape[1]) is None:
        return {"codes": codes, "scales": scales}
    return {"codes": (codes.view(torch.uint8) ^ 0x80).view(_WORD), "scales": scales}


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the dtype's name in the manifest and tensor files, such as "uint32"."""
    return str(tensor.dtype).removeprefix("torch.")


def _required(size: int) -> int:
    group = mlx_group(size)
    if group is None:
        raise ValueError(f"a group of {size}; expected a multiple of {GROUPS[-1]}")
    return group


def panels(rows: int, width: int) -> list[slice]:
    """The rows of a trained weight (rows, width) that are perturbed at a time: from a multiple of four on.

    About :data:`_PANEL` integers, or more where there would be more than :data:`_PANELS` parts: each is there once more
    in a function's file, for every query.
    """
    size = max(_PANEL // width, -(-rows // _PANELS)) // 4 * 4 + 4
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def matmul(a: mx.array, b: mx.array) -> mx.array:
    """a b: float32 (..., rows, depth), (..., depth, columns) -> (..., rows, columns)."""
    return _sum(a[..., part] @ b[..., part, :] for part in _parts(a.shape[-1]))


def _parts(depth: int) -> list[slice]:
    """Return a long inner dimension in parts.

    MLX's CPU adds one product after another: over a whole vocabulary, gradients that all but cancel would be 1e-4 off.
    """
    if depth <= 2 * _DEPTH:
        return [slice(None)]
    return [slice(begin, begin + _DEPTH) for begin in range(0, depth, _DEPTH)]


def _sum(parts: Iterable[mx.array]) -> mx.array:
    return functools.reduce(operator.add, parts)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A quantized weight within a function.

    Attributes:
        codes: uint32, or int8 where MLX has no layout for them.
        scales, biases: (N, K/group), or ``scales`` (N) alone for int8.
    """

    codes: mx.array
    scales: mx.array
    biases: mx.array | None

    @property
    def bits(self) -> int:
        """Bits of a code; int4 has biases of its own."""
        return 8 if self.biases is None else 4

    @property
    def width(self) -> int:
        """K."""
        per_word = 32 // self.bits if self._is_packed else 1
        return int(self.codes.shape[1]) * per_word

    @property
    def _is_packed(self) -> bool:
        import mlx.core as mx

        return bool(self.codes.dtype == mx.uint32)

    def product(self, x: mx.array, *, transpose: bool) -> mx.array:
        """x W^T where ``transpose``, else x W: float32 (..., N or K)."""
        import mlx.core as mx

        if not self._is_packed:
            values = self.numbers()
            return matmul(x, values.T if transpose else values)
        scales, biases, group = self._affine(self.scales, self.biases)

        def product(x: mx.array, rows: slice) -> mx.array:
            return mx.quantized_matmul(
                x,
                self.codes[rows],
                scales[rows],
                biases[rows],
                transpose=transpose,
                group_size=group,
                bits=self.bits,
            )

        if transpose:
            return product(x, slice(None))
        return _sum(product(x[..., part], part) for part in _parts(self.codes.shape[0]))

    def rows(self, indices: mx.array) -> mx.array:
        """Rows of W: integers (...) -> float32 (..., K)."""
        codes, scales = self.codes[indices], self.scales[indices]
        biases = None if self.biases is None else self.biases[indices]
        return self._numbers(codes, scales, biases)

    def numbers(self) -> mx.array:
        """W: float32 (N, K)."""
        return self._numbers(self.codes, self.scales, self.biases)

    def integers(self, indices: mx.array) -> mx.array:
        """Rows of the int8 codes q: (...) -> float32 (..., K)."""
        import mlx.core as mx

        codes = self.codes[indices]
        if not self._is_packed:
            return codes.astype(mx.float32)
        return mx.view(codes, mx.uint8).astype(mx.float32) - 128

    def _numbers(self, codes: mx.array, scales: mx.array, biases: mx.array | None) -> mx.array:
        import mlx.core as mx

        if not self._is_packed:
            return codes.astype(mx.float32) * scales[..., None]
        scales, biases, group = self._affine(scales, biases)
        return mx.dequantize(codes, scales, biases, group_size=group, bits=self.bits)

    def _affine(self, scales: mx.array, biases: mx.array | None) -> tuple[mx.array, mx.array, int]:
        """Scales and biases (..., K/group) float32, and the group's size."""
        import mlx.core as mx

        if biases is not None:
            group = self.width // int(scales.shape[-1])
            return scales.astype(mx.float32), biases.astype(mx.float32), group
        group = _required(self.width)
        repeated = mx.repeat(scales[..., None], self.width // group, axis=-1)
        return repeated, -128 * repeated, group
