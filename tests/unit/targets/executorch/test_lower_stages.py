"""The lowered programs of a split graph, run by ExecuTorch with the native library, against the graph in torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.native import load_library
from tests.support.splits import arguments, difference, tiny_graph
from zoexport.core.errors import LoweringError
from zoexport.core.graph import TrainingGraph
from zoexport.targets.executorch import emit
from zoexport.targets.executorch.lower_stages import lower_stages
from zoexport.targets.executorch.program_file import FILE


def shortest(name: str, weights: str) -> TrainingGraph:
    """A tiny model's graph with the programs for 32 tokens alone."""
    graph, _ = tiny_graph(name, weights=weights)
    programs = {key: value for key, value in graph.programs.items() if value.length in (None, 32)}
    return dataclasses.replace(graph, programs=programs)


@pytest.mark.parametrize(("name", "weights"), [("llama_tied", "int4"), ("gpt2", "fp32")])
def test_every_program_gives_what_the_graph_says(name: str, weights: str, tmp_path: Path) -> None:
    from executorch.runtime import Runtime

    graph = shortest(name, weights)
    lowered = lower_stages(graph, tmp_path, lambda *_: None)
    load_library()
    loaded = Runtime.get().load_program(str(tmp_path / FILE))
    assert [entry["name"] for entry in lowered.programs] == list(graph.programs)
    for entry, program in zip(lowered.programs, graph.programs.values(), strict=True):
        given = arguments(graph, program)
        found = loaded.load_method(entry["entry_point"]).execute(given)
        expected = program.module(*given)
        for value, ours, theirs in zip(program.outputs, found, expected, strict=True):
            assert tuple(ours.shape) == value.shape
            assert difference(ours, theirs) < 5e-6, (program.name, value.name)


def test_what_is_said_of_the_programs(tmp_path: Path) -> None:
    graph = shortest("llama_tied", "int4")
    lowered = lower_stages(graph, tmp_path, lambda *_: None)
    layer = next(entry for entry in lowered.programs if entry["name"] == "layer.0.backward@32")
    assert {key: layer[key] for key in ("family", "length", "file", "entry_point")} == {
        "family": "layer.0.backward",
        "length": 32,
        "file": "model.pte",
        "entry_point": "layer_0_backward_32",
    }
    assert layer["inputs"] == [
        value.as_dict() for value in graph.programs["layer.0.backward@32"].inputs
    ]
    assert "length" not in next(entry for entry in lowered.programs if entry["name"] == "head")
    # Nothing of a layer is left to the runtime's own kernels.
    assert lowered.fallback_ops == {program: {} for program in graph.programs}
    others = {name for name in lowered.required_ops if not name.startswith("zoexport::")}
    assert others == {"aten::view_copy.out", "executorch_prim::et_view.default"}
    assert {name.split(".")[0] for name in lowered.required_ops} >= {
        "zoexport::embedding_int4",
        "zoexport::linear_int4",
        "zoexport::linear_int4_input_gradient",
        "zoexport::matmul",
        "zoexport::label_gradient",
        "zoexport::linear_label_logprobs_int4",
        "zoexport::rows_1",
    }
    assert not lowered.delegates


def test_a_refusal_of_ExecuTorch_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such\nthing")

    monkeypatch.setattr(emit, "_encoded", refuse)
    graph = shortest("llama_tied", "int4")
    one = dataclasses.replace(graph, programs={"head": graph.programs["head"]})
    with pytest.raises(LoweringError, match="ValueError: no such") as error:
        lower_stages(one, tmp_path, lambda *_: None)
    assert error.value.where == "lowering to ExecuTorch"
