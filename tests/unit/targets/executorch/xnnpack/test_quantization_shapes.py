"""The shapes that lowering states for torchao's operators are those that the operators compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from zoexport.targets.executorch.xnnpack.quantization_shapes import stated_shapes

LIMITS = (torch.int8, -128, 127)


def results(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> list[torch.Tensor]:
    """Rows of ``x`` quantized and back as ``legalize`` writes it, and a weight in groups of 8."""
    torchao: Any = torch.ops.torchao
    row = [1, x.shape[-1]]
    scale, zero = torchao.choose_qparams_affine(
        x, "ASYMMETRIC", row, *LIMITS, None, None, torch.int8
    )
    quantized = torchao.quantize_affine(x, row, scale, zero, *LIMITS)
    back = torchao.dequantize_affine(quantized, row, scale, zero, *LIMITS)
    weight = torchao.dequantize_affine(codes, [1, 8], scales, None, torch.int8, -8, 7)
    return [scale, zero, quantized, back, weight]


def arguments() -> tuple[torch.Tensor, ...]:
    return torch.randn(3, 16), torch.ones(4, 16, dtype=torch.int8), torch.ones(4, 2)


def described(values: list[torch.Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(value.shape, value.dtype) for value in values]


def test_fake_tensors_have_the_computed_shapes() -> None:
    computed = described(results(*arguments()))
    with stated_shapes(), FakeTensorMode():
        assert described(results(*arguments())) == computed


def test_real_tensors_are_computed_and_everything_is_put_back() -> None:
    given = arguments()
    expected = results(*given)
    kernels = dict(torch.ops.torchao.quantize_affine.default.py_kernels)
    with stated_shapes():
        torch.testing.assert_close(results(*given), expected, rtol=0, atol=0)
    assert torch.ops.torchao.quantize_affine.default.py_kernels == kernels


def test_everything_is_put_back_after_a_failure() -> None:
    kernels = dict(torch.ops.torchao.dequantize_affine.default.py_kernels)
    with pytest.raises(KeyError), stated_shapes():
        raise KeyError
    assert torch.ops.torchao.dequantize_affine.default.py_kernels == kernels
