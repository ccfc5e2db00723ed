"""The rounding and rotation of activations: torch against ExecuTorch with the native library, and what it refuses."""

import math

import pytest
import torch

from tests.support.programs import lower, refuses, same, values
from zoexport.core import activation_grids as grids
from zoexport.ir.graphs import zo as ZO

FORMATS = [
    grids.int8(2.5),
    grids.fp8(3.1),
    grids.hybrid(0.7, 5.0),
    grids.int8(1e-9),
    grids.hybrid(1e9, 1e12),
]


@pytest.fixture(scope="module")
def method():
    rows = torch.export.Dim("T", min=1, max=300)
    arguments = (values(5, 3, 37), FORMATS[0].tensor())
    return lower(ZO.round_activations, arguments, dynamic=({0: rows}, {}))


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: f"{format.kind} {format.scale:.0e}")
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_it_has_the_same_bits(method, format, rows):
    x = values(rows, 3, 37) * torch.exp2(2 * values(rows, 3, 37, seed=1)) * format.largest() / 5
    x[0, 0, :4] = torch.tensor([0.0, -0.0, math.inf, -math.inf])
    expected = ZO.round_activations(x, format.tensor())
    assert same(method.execute((x, format.tensor()))[0], expected)
    assert not torch.equal(expected, x)


def test_middles_between_numbers_have_the_same_bits(method):
    halves = torch.arange(-111 * 3, 111 * 3).reshape(6, 3, 37) / 2
    for format in (grids.int8(127.0), grids.fp8(448.0), grids.hybrid(127.0, 448.0)):
        expected = ZO.round_activations(halves, format.tensor())
        assert same(method.execute((halves, format.tensor()))[0], expected)


def test_any_shape_and_layout():
    format = FORMATS[2].tensor()
    x = values(6, 4)
    assert same(ZO.round_activations(x.T, format), ZO.round_activations(x, format).T.contiguous())
    for shape in ((24,), (2, 3, 2, 2)):
        arguments = (x.reshape(shape), format)
        expected = ZO.round_activations(x, format).reshape(shape)
        assert same(lower(ZO.round_activations, arguments).execute(arguments)[0], expected)


BAD = {
    "x": lambda x, format: (x.double(), format),
    "format is": lambda x, format: (x, format[:2]),
    "format has": lambda x, format: (x, format * torch.tensor([1.0, 0.0, 1.0])),
    "format has the": lambda x, format: (x, format * torch.tensor([1.0, 1.0, math.nan])),
}


@pytest.mark.parametrize("message", BAD)
def test_it_refuses(message):
    arguments = BAD[message](values(4, 5), FORMATS[0].tensor())
    with pytest.raises(ValueError, match=message):
        ZO.round_activations(*arguments)
    refuses(ZO.round_activations, arguments)


@pytest.mark.parametrize("shape", [(32,), (3, 64), (40, 5, 96)])
def test_rotated_rows_have_the_same_bits(shape):
    x = values(*shape) * torch.exp2(6 * values(*shape, seed=1))
    assert same(lower(ZO.rotate_rows, (x,)).execute((x,))[0], ZO.rotate_rows(x))


@pytest.mark.parametrize("x", [values(3, 48), values(3, 64).double()])
def test_rows_without_whole_blocks_are_refused(x):
    refuses(ZO.rotate_rows, (x,))
