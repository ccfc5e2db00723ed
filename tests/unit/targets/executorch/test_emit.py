"""Program files that are written without ExecuTorch's compiler, run by its runtime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.native import load_library
from tests.support.programs import same, values
from tests.support.rows import fused, program, row_programs
from zoexport.core.graph import Program
from zoexport.targets.executorch import emit


def run(made: Program, path: Path, *inputs: torch.Tensor) -> Any:
    """What the runtime gives for a program that was written to ``path``."""
    from executorch.runtime import Runtime

    emit.write([made], path)
    load_library()
    loaded = Runtime.get().load_program(str(path))
    method = loaded.load_method("test")
    assert method is not None
    return [value.clone() for value in method.execute(inputs)]


def segment_size(path: Path) -> int:
    """Bytes behind the flatbuffer; 0 of a file without a header."""
    file = path.read_bytes()
    if file[8:12] != b"eh00":
        return 0
    begin, size = (int.from_bytes(file[at : at + 8], "little") for at in (24, 32))
    assert begin % 128 == 0 and begin + size == len(file)
    return size


def test_numbers_where_an_operator_takes_a_tensor_are_in_a_segment(tmp_path: Path) -> None:
    x = torch.arange(6).view(2, 3)
    made = program(lambda x: (x + 3, (x - 5) * 3, x + 2**40), x)
    path = tmp_path / "test.pte"
    for ours, theirs in zip(run(made, path, x), made.module(x), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == torch.int64
    # 3 is there once.
    assert segment_size(path) == 3 * 16


def test_a_program_without_constants_has_no_segment(tmp_path: Path) -> None:
    x = values(2, 3)
    path = tmp_path / "test.pte"
    (found,) = run(program(torch.relu, x), path, x)
    assert torch.equal(found, torch.relu(x)) and segment_size(path) == 0


def test_memory_says_what_a_result_is_converted_to(tmp_path: Path) -> None:
    codes = torch.arange(-3, 3, dtype=torch.int8)
    made = program(lambda x: torch.ops.aten._to_copy(x, dtype=torch.float32), codes)
    (found,) = run(made, tmp_path / "test.pte", codes)
    assert same(found, codes.float())


def test_numbers_that_are_not_finite_survive(tmp_path: Path) -> None:
    x = values(2, 3, 8)
    made = fused(program(lambda x: x.masked_fill(x > 0, -math.inf), x))
    assert -math.inf in row_programs(made)[0].constants
    (found,) = run(made, tmp_path / "test.pte", x)
    assert same(found, x.masked_fill(x > 0, -math.inf))


def test_an_operator_that_has_no_out_variant_is_named(tmp_path: Path) -> None:
    made = program(lambda x: torch.ops.zoexport_capture.begin(x, 0), values(2, 3))
    with pytest.raises(RuntimeError, match=r"zoexport_capture\.begin"):
        emit.write([made], tmp_path / "test.pte")
