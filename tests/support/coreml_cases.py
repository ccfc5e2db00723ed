"""Cases for the operations of the Core ML evaluator: what is built, and what PyTorch computes from the same inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.coreml_packages import FP16, FP32, INT32, mb, operation_kinds, save
from tests.support.tiny_models import fixed
from zoexport.testing import Package

FUNCTION = "cases"
X = 3 * fixed("x", (2, 3, 4))
WHOLE = (4 * fixed("whole", (2, 3, 4))).to(torch.int32)


@dataclasses.dataclass(frozen=True)
class Case:
    """``build`` takes the inputs' values in the program, ``expected`` the inputs in fp32 (or int32).

    Where numbers are written into the program, ``build`` takes the NumPy type of its floats as ``dtype``.
    """

    build: Callable[..., Any]
    expected: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


def case(build: Callable[..., Any], expected: Callable[..., Any], *inputs: torch.Tensor) -> Case:
    return Case(build, expected, inputs)


def integers(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def op(kind: str, *names: str, **settings: Any) -> Callable[..., Any]:
    """Builds one operation of inputs by their names; a setting that is a float gets the program's type."""

    def build(*inputs: Any, dtype: Any) -> Any:
        typed = {
            key: dtype(value) if isinstance(value, float) else value
            for key, value in settings.items()
        }
        return getattr(mb, kind)(**dict(zip(names, inputs, strict=True)), **typed)

    return build


def unary(kind: str, expected: Any, x: torch.Tensor = X, **settings: Any) -> Any:
    return case(op(kind, "x", **settings), expected, x)


class Compiled:
    """Cases compiled into one program of floats of one type, saved, read back and run.

    ``results`` has the outputs of each case, ``inputs`` what its reference is given.
    """

    def __init__(self, folder: Path, cases: Sequence[Case], *, half: bool) -> None:
        self.half = half
        dtype = np.float16 if half else np.float32
        kinds = {torch.float32: FP16 if half else FP32, torch.int32: INT32}
        self.inputs = [
            [
                tensor.half() if half and tensor.is_floating_point() else tensor
                for tensor in entry.inputs
            ]
            for entry in cases
        ]
        named = {
            f"i{number}_{place}": tensor
            for number, tensors in enumerate(self.inputs)
            for place, tensor in enumerate(tensors)
        }
        specs = {
            f"i{number}_{place}": (tensor.shape, kinds[tensor.dtype])
            for number, entry in enumerate(cases)
            for place, tensor in enumerate(entry.inputs)
        }

        def build(given: Mapping[str, Any]) -> dict[str, Any]:
            outputs = {}
            for number, entry in enumerate(cases):
                inputs = [given[f"i{number}_{place}"] for place in range(len(entry.inputs))]
                built = entry.build(*inputs, dtype=dtype)
                for place, value in enumerate(
                    built if isinstance(built, (list, tuple)) else [built]
                ):
                    outputs[f"o{number}_{place}"] = value
            return outputs

        self.package = Package(save(folder / "cases.mlpackage", {FUNCTION: (specs, build)}))
        results = self.package.run(FUNCTION, {key: value.numpy() for key, value in named.items()})
        self.results: list[list[NDArray[Any]]] = [
            [value for key, value in results.items() if key.startswith(f"o{number}_")]
            for number in range(len(cases))
        ]

    def operations(self) -> set[str]:
        """The kinds of operations that are in the saved program, constants left out."""
        return operation_kinds(self.package.folder, FUNCTION) - {"const"}

    def check(self, number: int, entry: Case) -> None:
        """Compare the results of a case with its reference, in fp16 exactly."""
        expected = entry.expected(*(widened(tensor) for tensor in self.inputs[number]))
        expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
        assert len(self.results[number]) == len(expected)
        for found, wanted in zip(self.results[number], expected, strict=True):
            if wanted.is_floating_point() and self.half:
                torch.testing.assert_close(
                    torch.from_numpy(found), wanted.half(), rtol=0, atol=0, equal_nan=True
                )
            else:
                torch.testing.assert_close(
                    torch.from_numpy(found),
                    wanted.to(torch.float32 if wanted.is_floating_point() else torch.int32),
                    rtol=1e-6,
                    atol=1e-6,
                )


def widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def compiled_fixture(cases: Sequence[Case]) -> Any:
    """The fixture ``compiled`` of a module: its cases in floats of both types."""

    @pytest.fixture(scope="module", params=[False, True], ids=["fp32", "fp16"])
    def compiled(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Compiled:
        return Compiled(tmp_path_factory.mktemp("coreml"), cases, half=request.param)

    return compiled
