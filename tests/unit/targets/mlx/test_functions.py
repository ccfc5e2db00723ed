"""Programs as MLX functions: traced, written, read back, and compared with the programs in torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch

from tests.support.mlx_arrays import named_inputs, to_mlx, to_torch
from tests.support.rows import program
from tests.support.splits import arguments, difference, tiny_graph
from tests.support.tiny_models import ARCHITECTURES, fixed
from zoexport.core.errors import LoweringError
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import aten
from zoexport.targets.mlx import functions as mlx_functions
from zoexport.targets.mlx.functions import Function, write_functions

OTHER_WEIGHTS = ("llama_tied", "opt", "gpt2")
CASES = [
    *((name, "int4") for name in ARCHITECTURES),
    *((name, weights) for name in OTHER_WEIGHTS for weights in ("fp32", "int8")),
]
X = fixed("x", (2, 3))


def families(graph: TrainingGraph) -> dict[str, list[Program]]:
    """The programs that are written to one file."""
    found: dict[str, list[Program]] = {}
    for made in graph.programs.values():
        found.setdefault(made.family, []).append(made)
    return found


def written(path: Path, *programs: Program) -> tuple[Any, list[Function]]:
    """What MLX reads of a file of programs, and what was written."""
    functions = [Function(made) for made in programs]
    write_functions(path, functions)
    return mx.import_function(str(path)), functions


@pytest.mark.parametrize(("name", "weights"), CASES)
def test_functions_are_the_programs(name: str, weights: str, tmp_path: Path) -> None:
    graph, _ = tiny_graph(name, target="ios-mlx", weights=weights)
    for family, programs in families(graph).items():
        imported, functions = written(tmp_path / f"{family}.mlxfn", *programs)
        for function in functions:
            values = arguments(graph, function.program)
            with torch.no_grad():
                expected = function.program.module(*values)
            found = imported(**named_inputs(function, values))
            for ours, theirs, value in zip(found, expected, function.program.outputs, strict=True):
                where = f"{function.program.name}: {value.name}"
                assert difference(to_torch(ours), theirs) < 1e-5, where
                assert str(to_torch(ours).dtype) == f"torch.{value.dtype}", where
                assert tuple(ours.shape) == value.sizes(), where


@pytest.mark.parametrize("weights", ["fp32", "int4", "int8"])
def test_a_file_holds_no_weights(weights: str, tmp_path: Path) -> None:
    graph, _ = tiny_graph("llama_tied", target="ios-mlx", weights=weights)
    for family, programs in families(graph).items():
        written(tmp_path / "f.mlxfn", *programs)
        assert (tmp_path / "f.mlxfn").stat().st_size < 100_000, family


@pytest.mark.parametrize("weights", ["fp32", "int4", "int8"])
def test_inputs_are_weights_as_they_are_stored(weights: str) -> None:
    graph, _ = tiny_graph("llama_tied", target="ios-mlx", weights=weights)
    for made in graph.programs.values():
        function = Function(made)
        given = named_inputs(function, arguments(graph, made))
        assert [(value.name, *_kind(given[value.name])) for value in function.inputs] == [
            (value.name, value.dtype, value.sizes()) for value in function.inputs
        ]
        assert given.keys() == function.examples().keys()
        assert all(
            _kind(example) == _kind(given[key]) for key, example in function.examples().items()
        )


def _kind(array: mx.array) -> tuple[str, tuple[int, ...]]:
    return str(array.dtype).removeprefix("mlx.core."), tuple(array.shape)


def test_a_length_without_a_trace_is_refused(tmp_path: Path) -> None:
    graph, _ = tiny_graph("llama", target="ios-mlx", weights="int4")
    (family,) = {made.family for made in graph.programs.values() if made.name == "layer.0@32"}
    imported, functions = written(tmp_path / "f.mlxfn", *families(graph)[family])
    assert [function.program.length for function in functions] == [32, 48]
    given = named_inputs(functions[0], arguments(graph, functions[0].program))
    (hidden,) = (v.name for v in functions[0].program.inputs if v.role == "activation")
    imported(**given)
    given[hidden] = given[hidden][:, :31]
    with pytest.raises(ValueError, match="No imported function found"):
        imported(**given)


def run(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor]:
    """What the function of a small program gives."""
    made = Function(program(function, *inputs))
    return [to_torch(array) for array in made(**named_inputs(made, list(inputs)))]


def test_an_operator_without_a_rule_is_one_clear_error() -> None:
    with pytest.raises(LoweringError) as error:
        run(lambda x: aten.tan(aten.sin(x)), X)
    assert str(error.value).startswith("program test, aten.tan: ")
    assert error.value.found == "the operator aten.tan.default"
    assert "another target" in error.value.fix


def test_the_refusal_of_a_rule_names_the_operator(tmp_path: Path) -> None:
    made = program(lambda x: aten.constant_pad_nd(x, [-1, 0]) + 1.0, X)
    with pytest.raises(LoweringError) as error:
        written(tmp_path / "f.mlxfn", made)
    assert "aten.constant_pad_nd" in error.value.where
    assert error.value.found == "a negative padding"
    assert error.value.expected == "arguments that the rule of aten.constant_pad_nd takes"


def test_what_MLX_cannot_write_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mlx_functions._RULES, aten.bitwise_not, mx.bitwise_invert)
    made = program(lambda x: aten.bitwise_not(x), torch.arange(3))
    with pytest.raises(LoweringError, match="Unable to serialize primitive") as error:
        written(tmp_path / "f.mlxfn", made)
    assert error.value.where == "program test"


def test_where_torch_stores_a_tensor_means_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        cpu = {"device": torch.device("cpu"), "pin_memory": False}
        zeros = aten.full([2, 3], 1.0, dtype=torch.float32, layout=torch.strided, **cpu)
        return aten.clone(x, memory_format=torch.contiguous_format) + zeros

    (found,) = run(function, X)
    assert torch.equal(found, X + 1)


def test_outputs_have_the_declared_dtype() -> None:
    (found,) = run(lambda x: aten.argmax(x, -1), X)
    assert found.dtype == torch.int64


def test_constants_within_a_program_are_no_inputs(tmp_path: Path) -> None:
    made = program(lambda x: x * torch.arange(3, dtype=torch.float32), X)
    imported, _ = written(tmp_path / "f.mlxfn", made)
    (found,) = imported(in0=to_mlx(X))
    assert torch.equal(to_torch(found), X * torch.arange(3))
