"""Quantized weights in MLX's layout: exactly what docs/formats.md says of codes and scales."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch

from tests.support.mlx_arrays import packed, to_mlx, to_torch
from tests.support.splits import difference
from tests.support.tiny_models import fixed
from zoexport.core import int4
from zoexport.targets.mlx.packing import dtype_name, mlx_group, pack

ROWS = 40
GROUPS = (32, 64, 96, 128, 256)
INT8_WIDTHS = {256: 128, 192: 64, 96: 32, 24: None}
"""K and the group of MLX in which it is read."""
Parts = tuple[torch.Tensor, torch.Tensor]


def int4_weight(group: int) -> Parts:
    return int4.quantize_int4(fixed("weight", (ROWS, 2 * group)), group)


def int8_weight(width: int) -> Parts:
    return int4.quantize_int8(fixed("weight", (ROWS, width)))


WEIGHTS = [
    *(pytest.param(int4_weight(group), id=f"int4, groups of {group}") for group in GROUPS),
    *(pytest.param(int8_weight(width), id=f"int8, {width} wide") for width in INT8_WIDTHS),
]


def numbers(parts: Parts) -> torch.Tensor:
    """What codes and scales stand for."""
    is_int4 = parts[0].dtype == torch.uint8
    return (int4.dequantize_int4 if is_int4 else int4.dequantize_int8)(*parts)


@pytest.mark.parametrize("group", GROUPS)
def test_int4_is_exact(group: int) -> None:
    weight = int4_weight(group)
    parts = {key: to_mlx(tensor) for key, tensor in pack(*weight).items()}
    stored = mlx_group(group)
    assert parts["codes"].shape == (ROWS, 2 * group // 8)
    assert parts["scales"].shape == parts["biases"].shape == (ROWS, 2 * group // stored)
    scales, biases = (parts[part].astype(mx.float32) for part in ("scales", "biases"))
    found = mx.dequantize(parts["codes"], scales, biases, group_size=stored, bits=4)
    assert torch.equal(to_torch(found), numbers(weight))


def test_the_extremes_of_int4_are_exact() -> None:
    codes = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    scales = torch.tensor([2.0**-126, 1e37, 1.0, 0.1, 1e-3, 7.5, 2.0**-100, 1e30])
    parts = (codes, scales.to(torch.bfloat16)[:, None].repeat(1, 2))
    assert torch.equal(to_torch(packed(*parts).numbers()), numbers(parts))


@pytest.mark.parametrize("width", INT8_WIDTHS)
def test_int8_is_read_in_groups_with_one_scale(width: int) -> None:
    codes, scales = int8_weight(width)
    codes[0, :2] = torch.tensor([-127, 127])
    parts = pack(codes, scales)
    is_packed = INT8_WIDTHS[width] is not None
    assert mlx_group(width) == INT8_WIDTHS[width]
    assert parts.keys() == {"codes", "scales"} and torch.equal(parts["scales"], scales)
    assert dtype_name(parts["codes"]) == ("uint32" if is_packed else "int8")
    found, expected = to_torch(packed(codes, scales).numbers()), numbers((codes, scales))
    assert difference(found, expected) < 1e-7
    # A unit in the last place of the greatest weight: 255 scales less 128 are rounded.
    assert not ((found - expected).abs() > 2.0**-16 * scales[:, None]).any()


@pytest.mark.parametrize("weight", WEIGHTS)
def test_products(weight: Parts) -> None:
    values = numbers(weight)
    x, dy = fixed("x", (2, 3, values.shape[1])), fixed("dy", (2, 3, ROWS))
    forward = packed(*weight).product(to_mlx(x), transpose=True)
    backward = packed(*weight).product(to_mlx(dy), transpose=False)
    assert difference(to_torch(forward), x @ values.T) < 1e-6
    assert difference(to_torch(backward), dy @ values) < 1e-6


@pytest.mark.parametrize("weight", WEIGHTS)
def test_rows_are_those_of_the_numbers(weight: Parts) -> None:
    made = packed(*weight)
    assert made.width == numbers(weight).shape[1]
    assert made.bits == (4 if weight[0].dtype == torch.uint8 else 8)
    indices = torch.tensor([[3, 0, ROWS - 1], [3, 3, 1]])
    rows = to_torch(made.rows(to_mlx(indices)))
    assert rows.dtype == torch.float32
    assert torch.equal(rows, to_torch(made.numbers())[indices])


@pytest.mark.parametrize("width", INT8_WIDTHS)
def test_integers_are_the_codes(width: int) -> None:
    codes, scales = int8_weight(width)
    indices = torch.tensor([[3, 0], [ROWS - 1, 3]])
    found = to_torch(packed(codes, scales).integers(to_mlx(indices)))
    assert found.dtype == torch.float32 and torch.equal(found, codes[indices].float())


@pytest.mark.parametrize("weight", WEIGHTS)
def test_tensors_without_values_give_the_same_shapes(weight: Parts) -> None:
    made, meant = pack(*weight), pack(*(part.to("meta") for part in weight))
    assert made.keys() == meant.keys()
    for part, tensor in meant.items():
        assert tensor.is_meta
        assert (tensor.dtype, tensor.shape) == (made[part].dtype, made[part].shape)


def test_a_group_that_is_no_multiple_of_32_is_refused() -> None:
    codes, scales = torch.zeros(4, 24, dtype=torch.uint8), torch.ones(4, 1, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="a group of 48; expected a multiple of 32"):
        pack(codes, scales)
