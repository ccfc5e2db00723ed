"""Weight quantization: INT4 in groups (docs/formats.md states the packing) and INT8 by output channel."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from zoexport.core.errors import ConfigError
from zoexport.core.native import find_library
from zoexport.core.untouched import untouched_zeros

#: The packing id of group size 32; :func:`packing_id` gives that of any group size.
SPEC_ID = "int4-symmetric-g32/1"
GROUP_SIZE = 32

CHUNK = 1 << 18
"""Weights at a time: about ten float32 temporaries of 1 MB, which a processor's cache holds."""
_SERIAL = 1 << 15
"""Weights at a time that PyTorch does not share out: waiting for the other threads takes longer than the work."""
#: A scale is absmax over one of these: 7.5 halves the error of both ends, larger ones clip outliers.
_DIVISORS = tuple(6.25 + 0.25 * i for i in range(16))
STEPS = 16
"""With ``steps`` a scale is 1 to STEPS times a row's step, and the largest of a row is STEPS times it."""


def packing_id(group_size: int) -> str:
    """Return the id of the packing with groups of ``group_size``, as a manifest states it."""
    return f"int4-symmetric-g{group_size}/1"


def check_group_size(group_size: int, width: int, *, where: str = "group size") -> None:
    """Refuse a group size that the packing cannot have; it is never changed silently.

    Args:
        group_size: weights that share a scale.
        width: input width K of the weight.
        where: what to name in the message.

    Raises:
        ConfigError: not a positive multiple of 32, or not a divisor of ``width``.
    """
    if group_size <= 0 or group_size % 32:
        raise ConfigError(
            where,
            found=f"group size {group_size}",
            expected="a positive multiple of 32",
            fix="Choose 32, 64 or 128.",
        )
    if width <= 0 or width % group_size:
        raise ConfigError(
            where,
            found=f"group size {group_size} for an input width of {width}",
            expected="a group size that divides the input width",
            fix="Choose a smaller group size, or leave this weight unquantized.",
        )


def quantize_int4(
    weight: torch.Tensor,
    group_size: int = GROUP_SIZE,
    *,
    steps: bool = False,
    where: str = "weight",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a weight.

    For each group the scale is the one, of 16 candidates already rounded to bfloat16, whose codes give the
    least squared error.

    Args:
        weight: (..., N, K), a floating dtype. It is read in pieces; temporaries stay below 64 MB.
        group_size: a multiple of 32 that divides K.
        steps: use scales that are 1 to 16 times one step of their row, and codes from -7 on. Integer
            products of NPUs take such weights alone.
        where: what to name in a message.

    Returns:
        codes uint8 (..., N, K/2) and scales bfloat16 (..., N, K/group_size), positive and normal.

    Raises:
        ConfigError: an impossible group size, or a weight that is not a finite matrix.
    """
    _check_matrix(weight, where)
    *lead, width = weight.shape
    weight = weight.detach().flatten(0, -2)
    check_group_size(group_size, width, where=where)
    groups = weight.reshape(-1, group_size)
    # Allocated apart from the temporaries, which would fragment the heap.
    codes = untouched_zeros((groups.shape[0], group_size // 2), torch.uint8)
    scales = untouched_zeros((groups.shape[0],), torch.bfloat16)
    chunk = max(1, CHUNK // group_size)
    native = _native()

    def quantize(begin: int) -> None:
        part = groups[begin : begin + chunk].to(torch.float32)
        _check_finite(part, where)
        into = codes[begin : begin + chunk], scales[begin : begin + chunk]
        (native or quantize_groups)(part.contiguous(), *into)

    begins = range(0, groups.shape[0], chunk)
    if native is None or len(begins) == 1:  # torch has threads of its own
        for begin in begins:
            quantize(begin)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            list(threads.map(quantize, begins))
    codes, scales = codes.reshape(-1, width // 2), scales.reshape(-1, width // group_size)
    if steps:
        pieces = max(1, CHUNK // width)
        for begin in range(0, len(weight), pieces):
            part = slice(begin, begin + pieces)
            codes[part], scales[part] = _in_steps(weight[part].float(), scales[part])
    return codes.reshape(*lead, -1), scales.reshape(*lead, -1)


def _in_steps(weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rows (n, K) whose best scales (n, groups) are rounded to steps.

    A step has 4 significant bits, so that each of its multiples is a bfloat16. Of the two nearest steps of
    a row, and of the two nearest multiples for a group, those with the least squared error are taken.
    """
    groups = weight.unflatten(1, (scales.shape[1], -1))
    wanted = scales.float()
    largest = wanted.amax(1, keepdim=True)
    tiny = STEPS * torch.finfo(torch.bfloat16).tiny
    mantissa, exponent = torch.frexp(largest.clamp(min=tiny))

    def codes_of(scale: torch.Tensor) -> torch.Tensor:
        return (groups / scale.unsqueeze(2)).round().clamp(-7, 7)

    def error_of(scale: torch.Tensor) -> torch.Tensor:
        return (codes_of(scale) * scale.unsqueeze(2) - groups).square().sum(2)

    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    for near in (torch.floor, torch.ceil):
        step = torch.ldexp(near(mantissa * 16) / 16, exponent) / STEPS
        times = (wanted / step).floor().clamp(1, STEPS)
        times[wanted == largest] = STEPS
        low, high = step * times, step * (times + 1).clamp(max=STEPS)
        errors = error_of(low), error_of(high)
        best = torch.where(errors[0] <= errors[1], low, high)
        found.append((best, torch.minimum(*errors).sum(1, keepdim=True)))
    (smaller, error), (larger, other) = found
    best = torch.where(error <= other, smaller, larger)
    return pack_int4(codes_of(best).flatten(1)), best.to(torch.bfloat16)


def dequantize_int4(
    codes: torch.Tensor, scales: torch.Tensor, group_size: int | None = None
) -> torch.Tensor:
    """Dequantize a weight: w = q * s, exact in float32.

    Args:
        codes: uint8 (..., N, K/2).
        scales: bfloat16 (..., N, K/group_size).
        group_size: None: K divided by the number of scales per row.

    Returns:
        float32 (..., N, K).

    Raises:
        ConfigError: shapes or dtypes that do not belong together.
    """
    size = _check_packed(codes, scales, group_size)
    *lead, half = codes.shape
    groups = codes.reshape(-1, size // 2)
    factors = scales.to(torch.float32).reshape(-1, 1)
    values = torch.empty(len(groups), size)
    chunk = max(1, _SERIAL // size)
    for begin in range(0, len(groups), chunk):
        part = values[begin : begin + chunk]
        part.copy_(unpack_int4(groups[begin : begin + chunk])).mul_(factors[begin : begin + chunk])
    return values.reshape(*lead, 2 * half)


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """Integers of [-8, 7] as q + 8, two a byte, the even element in the low nibble: (..., K) -> (..., K/2)."""
    shifted = (values + 8).to(torch.uint8)
    return shifted[..., 0::2] | (shifted[..., 1::2] << 4)


def unpack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Return the int8 values of packed codes: (..., K/2) -> (..., K)."""
    both = codes.to(torch.int16)
    nibbles = (both | (both << 4)) & 0x0F0F  # the even element in the first byte
    return nibbles.view(torch.int8) - 8


def quantize_int8(
    weight: torch.Tensor, *, where: str = "weight"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of a weight, one symmetric scale for each output channel.

    Args:
        weight: (..., N, K), a floating dtype.
        where: what to name in a message.

    Returns:
        codes int8 (..., N, K) in [-127, 127] and scales float32 (..., N), positive and normal.

    Raises:
        ConfigError: the weight is not a finite matrix.
    """
    _check_matrix(weight, where)
    lead = weight.shape[:-1]
    weight = weight.detach().flatten(0, -2)
    codes = untouched_zeros(tuple(weight.shape), torch.int8)
    scales = untouched_zeros((weight.shape[0],), torch.float32)
    chunk = max(1, CHUNK // max(1, weight.shape[1]))
    for begin in range(0, weight.shape[0], chunk):
        part = weight[begin : begin + chunk].to(torch.float32)
        _check_finite(part, where)
        scale = (part.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        scales[begin : begin + chunk] = scale
        codes[begin : begin + chunk] = (
            (part / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8)
        )
    return codes.reshape(*lead, -1), scales.reshape(lead)


def dequantize_int8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """w = q * s of codes int8 (..., N, K) and scales float32 (..., N): float32 (..., N, K).

    Raises:
        ConfigError: shapes or dtypes that do not belong together.
    """
    fits = codes.dim() >= 2 and scales.shape == codes.shape[:-1]
    if not fits or codes.dtype != torch.int8 or scales.dtype != torch.float32:
        raise ConfigError(
            "int8 weight",
            found=f"codes {_describe(codes)} with scales {_describe(scales)}",
            expected="codes int8 (..., N, K) with scales float32 (..., N)",
            fix="Pass what quantize_int8 returned.",
        )
    return codes.to(torch.float32) * scales.unsqueeze(-1)


def quantize_groups(groups: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Quantize groups in PyTorch: what the library's kernel computes, operation by operation.

    Args:
        groups: float32 (n, group_size), finite.
        codes, scales: filled, uint8 (n, group_size/2) and bfloat16 (n).
    """
    scales[:] = _best_scales(groups)
    codes[:] = pack_int4(_codes(groups, scales.to(torch.float32)))


@functools.cache
def _native() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None:
    """Return the library's version of :func:`quantize_groups`; None if the library lacks it."""
    path = find_library()
    function = path and getattr(ctypes.CDLL(str(path)), "zo_quantize_int4", None)
    if not function:
        return None
    function.restype = None
    function.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_void_p),
    )

    def quantize(groups: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        function(groups.data_ptr(), *groups.shape, codes.data_ptr(), scales.data_ptr())

    return quantize


def _codes(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (groups / scale.unsqueeze(1)).round_().clamp_(-8, 7)


def _best_scales(groups: torch.Tensor) -> torch.Tensor:
    """The bfloat16 scale of each group (n, group_size) with the least squared error: (n,)."""
    largest = groups.abs().amax(dim=1)
    tiny = torch.finfo(torch.bfloat16).tiny
    best = torch.full_like(largest, tiny, dtype=torch.bfloat16)
    best_error = torch.full_like(largest, float("inf"))
    # Errors relative to the largest weight: squares of tiny or huge weights would leave float32.
    unit = groups / largest.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    for divisor in _DIVISORS:
        scale = (largest / divisor).to(torch.bfloat16).clamp(min=tiny)
        relative = scale.to(torch.float32) / largest.clamp(min=torch.finfo(torch.float32).tiny)
        values = _codes(groups, scale.to(torch.float32)) * relative.unsqueeze(1)
        error = _sum(values.sub_(unit).square_())
        better = error < best_error
        best = torch.where(better, scale, best)
        best_error = torch.where(better, error, best_error)
    return torch.where(largest > 0, best, torch.full_like(best, tiny))


def _sum(squares: torch.Tensor) -> torch.Tensor:
    """Sum each row (n, group_size) in a fixed order: elements i, i + 8, ... first, then halves."""
    parts = squares.unflatten(1, (-1, 8))
    total = parts[:, 0].clone()
    for number in range(1, parts.shape[1]):
        total += parts[:, number]
    while total.shape[1] > 1:
        first, second = total.chunk(2, dim=1)
        total = first + second
    return total.squeeze(1)


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _check_matrix(weight: torch.Tensor, where: str) -> None:
    if weight.dim() < 2 or not weight.is_floating_point():
        raise ConfigError(
            where,
            found=_describe(weight),
            expected="a floating-point matrix (..., N, K)",
            fix="Quantize only the weights of linear layers, embeddings and experts.",
        )


def _check_finite(part: torch.Tensor, where: str) -> None:
    if not bool(torch.isfinite(part).all()):
        raise ConfigError(
            where,
            found="a weight that is not finite",
            expected="finite weights",
            fix="Repair the checkpoint, or load it in the dtype in which it was saved.",
        )


def _check_packed(codes: torch.Tensor, scales: torch.Tensor, group_size: int | None) -> int:
    matrices = codes.dim() >= 2 and scales.shape[:-1] == codes.shape[:-1]
    groups, width = (scales.shape[-1], 2 * codes.shape[-1]) if matrices else (0, 0)
    size = group_size if group_size is not None else (width // groups if groups else 0)
    if not groups or codes.dtype != torch.uint8 or scales.dtype != torch.bfloat16:
        raise ConfigError(
            "int4 weight",
            found=f"codes {_describe(codes)} with scales {_describe(scales)}",
            expected="codes uint8 (..., N, K/2) with scales bfloat16 (..., N, K/group_size)",
            fix="Pass what quantize_int4 returned.",
        )
    check_group_size(size, width, where="int4 weight")
    if groups * size != width:
        raise ConfigError(
            "int4 weight",
            found=f"{groups} scales in a row of {width} weights",
            expected=f"{width // size} scales for groups of {size}",
            fix="Pass the group size that the weight was quantized with.",
        )
    return size
