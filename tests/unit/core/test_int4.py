"""INT4 and INT8 weights: the packing, the quality of the scales, and what is refused."""

import pytest
import torch

from zoexport.core import int4
from zoexport.core.errors import ConfigError


def weight(rows, width, seed=0, outliers=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator) * 0.02
    if outliers:
        values[:, ::29] *= 20
    return values


def test_the_packing_is_the_documented_one():
    """Element by element, without the package's own unpacking."""
    codes, scales = int4.quantize_int4(weight(5, 128), 64)
    assert codes.dtype == torch.uint8 and codes.shape == (5, 64)
    assert scales.dtype == torch.bfloat16 and scales.shape == (5, 2)
    values = int4.dequantize_int4(codes, scales, 64)
    for n in range(5):
        for k in range(128):
            q = ((int(codes[n, k // 2]) >> (4 * (k % 2))) & 15) - 8
            assert float(values[n, k]) == q * float(scales[n, k // 64])


def test_pack_and_unpack_are_inverse():
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(4).reshape(2, 32)
    packed = int4.pack_int4(values)
    assert packed[0, 0] == 0x10 and packed[0, 1] == 0x32  # low nibble first, stored as q + 8
    assert torch.equal(int4.unpack_int4(packed), values)


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("group_size", [32, 128])
def test_scales_beat_the_plain_choice(group_size, outliers):
    w = weight(64, 512, outliers=outliers)
    codes, scales = int4.quantize_int4(w, group_size)
    groups = w.reshape(-1, group_size)
    plain = (groups.abs().amax(dim=1, keepdim=True) / 7.5).bfloat16().float()
    simple = (groups / plain).round().clamp(-8, 7) * plain
    ours = int4.dequantize_int4(codes, scales, group_size).reshape(-1, group_size)
    error, simple_error = (ours - groups).square().sum(1), (simple - groups).square().sum(1)
    assert bool((error <= simple_error * (1 + 1e-5)).all())
    assert error.sum() < 0.97 * simple_error.sum()


@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.parametrize("group_size", [32, 128])
def test_scales_in_steps(group_size, outliers):
    w = weight(64, 512, outliers=outliers)
    w[3] = 0
    codes, scales = int4.quantize_int4(w, group_size, steps=True)
    largest = scales.float().amax(dim=1, keepdim=True)
    times = scales.float() / largest * int4.STEPS
    assert torch.equal(times, times.round()) and times.min() >= 1
    assert int(int4.unpack_int4(codes).min()) == -7
    free = int4.dequantize_int4(*int4.quantize_int4(w, group_size), group_size)
    ours = int4.dequantize_int4(codes, scales, group_size)
    assert (ours - w).norm() < 1.2 * (free - w).norm()  # a tenth more, of normal weights
    again = int4.quantize_int4(w[5:6], group_size, steps=True)
    assert torch.equal(again[0], codes[5:6]) and torch.equal(again[1], scales[5:6])


def test_each_code_is_the_nearest_for_its_scale():
    w = weight(16, 64)
    codes, scales = int4.quantize_int4(w)
    s = scales.float().repeat_interleave(32, dim=1)
    assert torch.equal(int4.unpack_int4(codes).float(), (w / s).round().clamp(-8, 7))


def test_a_packed_weight_survives_exactly():
    """A weight that is already on a grid of 16 levels comes back to the last bit."""
    q = torch.randint(-7, 8, (8, 64), generator=torch.Generator().manual_seed(3)).float()
    q[:, ::32] = 7.0
    w = q * 0.015625
    assert torch.equal(int4.dequantize_int4(*int4.quantize_int4(w)), w)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-42, 3e38])
def test_scales_are_positive_normal_and_finite(value):
    codes, scales = int4.quantize_int4(torch.full((2, 64), value))
    assert bool((scales.float() >= torch.finfo(torch.bfloat16).tiny).all())
    back = int4.dequantize_int4(codes, scales)
    assert bool(torch.isfinite(back).all())
    if value in (0.0, 1e-42):
        assert bool((back == 0).all())
    else:
        assert torch.allclose(back, torch.full_like(back, value), rtol=0.1)


@pytest.mark.parametrize("group_size", [32, 96, 128])
@pytest.mark.parametrize("spread", [1e-42, 1e-38, 1e-6, 0.02, 7.0, 1e30, 3e37])
def test_the_kernel_gives_the_bits_of_pytorch(group_size, spread):
    generator = torch.Generator().manual_seed(group_size)
    groups = torch.randn(700, group_size, generator=generator) * spread
    groups[::7, ::5] *= 8
    groups[::11] = 0
    groups[3::11] = (groups[3::11] / spread).round() * spread  # halves and ties
    kernel = int4._native()
    assert kernel is not None
    found = [
        (torch.zeros(700, group_size // 2, dtype=torch.uint8), torch.zeros(700).bfloat16())
        for _ in range(2)
    ]
    kernel(groups, *found[0])
    int4.quantize_groups(groups, *found[1])
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1].view(torch.int16), found[1][1].view(torch.int16))


def test_pieces_do_not_change_the_result(monkeypatch):
    w = weight(33, 96)
    whole = int4.quantize_int4(w)
    whole8 = int4.quantize_int8(w)
    monkeypatch.setattr(int4, "CHUNK", 160)
    pieces = (*int4.quantize_int4(w), *int4.quantize_int8(w))
    monkeypatch.setattr(int4, "_native", lambda: None)
    without_a_library = (*int4.quantize_int4(w), *whole8)
    for found in (pieces, without_a_library):
        for a, b in zip((*whole, *whole8), found, strict=True):
            assert torch.equal(a, b)


def test_half_precision_weights_are_read_as_they_are():
    w = weight(4, 64).bfloat16()
    for a, b in zip(int4.quantize_int4(w), int4.quantize_int4(w.float()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("group_size", [0, -32, 1, 16, 48, 33])
def test_an_impossible_group_size_is_refused(group_size):
    with pytest.raises(ConfigError, match="multiple of 32"):
        int4.quantize_int4(weight(4, 96), group_size, where="fc1.weight")


@pytest.mark.parametrize(("width", "group_size"), [(96, 64), (40, 32), (16, 32), (32, 64)])
def test_a_group_size_that_does_not_divide_is_refused(width, group_size):
    with pytest.raises(ConfigError) as caught:
        int4.quantize_int4(weight(4, width), group_size, where="fc1.weight")
    assert caught.value.where == "fc1.weight"
    assert str(width) in caught.value.found and str(group_size) in caught.value.found


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantize", [int4.quantize_int4, int4.quantize_int8])
def test_a_weight_that_is_not_finite_is_refused(quantize, bad):
    w = weight(4, 64)
    w[2, 5] = bad
    with pytest.raises(ConfigError, match="finite"):
        quantize(w)


@pytest.mark.parametrize("quantize", [int4.quantize_int4, int4.quantize_int8])
@pytest.mark.parametrize("w", [torch.zeros(64), torch.zeros(2, 64).int()])
def test_only_matrices_are_quantized(quantize, w):
    with pytest.raises(ConfigError, match="matrix"):
        quantize(w)


def test_parts_that_do_not_belong_together_are_refused():
    codes, scales = int4.quantize_int4(weight(4, 128), 32)
    for bad_codes, bad_scales, size in [
        (codes, scales[:3], None),
        (codes, scales.float(), None),
        (codes.int(), scales, None),
        (codes[0], scales, None),
        (codes, scales, 64),
        (codes, scales[:, :3], 32),
    ]:
        with pytest.raises(ConfigError):
            int4.dequantize_int4(bad_codes, bad_scales, size)
    codes8, scales8 = int4.quantize_int8(weight(4, 128))
    with pytest.raises(ConfigError):
        int4.dequantize_int8(codes8, scales8[:3])


def test_int8_is_symmetric_by_row():
    w = weight(6, 50)
    w[4] = 0
    codes, scales = int4.quantize_int8(w)
    assert codes.dtype == torch.int8 and scales.shape == (6,)
    assert int(codes.min()) >= -127
    assert bool((codes.abs().amax(1)[w.abs().amax(1) > 0] == 127).all())
    back = int4.dequantize_int8(codes, scales)
    assert bool(((back - w).abs() <= scales.unsqueeze(1) * 0.5001).all())
    assert bool((back[4] == 0).all())


def test_packing_ids():
    assert int4.packing_id(32) == int4.SPEC_ID
    assert int4.packing_id(128) == "int4-symmetric-g128/1"
