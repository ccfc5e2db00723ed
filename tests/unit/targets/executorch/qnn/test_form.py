"""Programs in the form that the NPU takes say what they said before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.qnn import needs_qnn
from tests.support.tiny_models import VOCAB_SIZE, save_tiny, tiny
from tests.support.transformers_examples import tokenize_file
from zoexport import models
from zoexport.calibration import calibration_tokens
from zoexport.compiler.build import compile_bundle
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError
from zoexport.core.graph import Dim, Measured, Program, TrainingGraph
from zoexport.ir.graphs import aten, is_call, operand, placeholders, shape_of
from zoexport.ir.interpret import interpret
from zoexport.ir.samples import sample_inputs
from zoexport.targets.executorch.qnn.form import for_htp
from zoexport.targets.executorch.qnn.quantize import (
    ADAPTER_RANGE,
    MASKED,
    calibration_inputs,
    soften_masks,
)

pytestmark = needs_qnn

SETTINGS = {"max_length": "24", "batch_size": "2", "lora.r": "4", "num_queries": "1"}


def graph_of(name: str, weights: str, method: str = "prge") -> TrainingGraph:
    planned = plan(method, "android-npu", {**SETTINGS, "weights": weights})
    return training_graph(planned, tiny(name), lambda *_: None)


def results(graph: TrainingGraph, program: Program) -> torch.Tensor:
    inputs = sample_inputs(graph, program)
    given = [
        graph.weights[value.name] if value.role == "weight" else inputs[value.name]
        for value in program.inputs
    ]
    with torch.no_grad():
        found: torch.Tensor = program.module(*given)[0]
    return found


@pytest.mark.parametrize(
    ("name", "weights"),
    [("llama", "int4"), ("gemma3", "int8"), ("olmo2", "fp32"), ("opt", "int4")],
)
def test_the_same_numbers_at_one_size(name: str, weights: str) -> None:
    graph = graph_of(name, weights)
    program = for_htp(graph, "evaluate")
    assert not any(isinstance(size, Dim) for value in program.inputs for size in value.shape)
    tokens = next(value for value in program.inputs if value.role == "tokens")
    assert tokens.shape == (2, 24)
    inputs = sample_inputs(graph, program)
    # The graph takes longer rows: what comes after a label changes nothing.
    rows = torch.zeros(2, graph.length, dtype=torch.int64)
    rows[:, :24] = inputs["tokens"]
    positions = inputs["label_positions"]
    moved = {
        **inputs,
        "tokens": rows,
        "label_positions": positions // 24 * graph.length + positions % 24,
    }
    expected = interpret(graph, "evaluate", moved)["label_logprobs"]
    torch.testing.assert_close(results(graph, program), expected, rtol=1e-4, atol=1e-4)


def test_indices_have_32_bits_and_the_seed_64() -> None:
    program = for_htp(graph_of("opt", "int4"), "train")
    for node in program.module.graph.nodes:
        for operator, place in ((aten.embedding, 1), (aten.index_select, 2)):
            if is_call(node, operator):
                assert operand(node, place).meta["val"].dtype == torch.int32
    assert {value.dtype for value in program.inputs if value.name in ("seed", "step")} == {"int64"}


def test_norms_are_one_operator_where_rows_have_64_elements() -> None:
    """QNN's operator gives wrong numbers for shorter rows: the queries' and keys' norms here, of 16."""
    nodes = for_htp(graph_of("gemma3", "fp32"), "evaluate").module.graph.nodes
    norms = [node for node in nodes if is_call(node, aten.rms_norm)]
    written_out = [node for node in nodes if is_call(node, aten.rsqrt)]
    # As rows of two dimensions: of three, the operator is wrong for some numbers of rows.
    assert norms and {shape_of(node)[1:] for node in norms} == {(64,)}
    assert written_out and {shape_of(node)[1] for node in written_out} <= {2, 4}  # heads


@pytest.mark.parametrize("queries", ["1", "2"])
def test_one_row_is_repeated_for_the_copies_that_read_it(queries: str) -> None:
    """The HTP may read zeros beyond the first copy where it broadcasts a computed value itself."""
    planned = plan("prge", "android-npu", {**SETTINGS, "batch_size": "1", "num_queries": queries})
    graph = training_graph(planned, tiny("llama"), lambda *_: None)
    program = for_htp(graph, "train")
    names = placeholders(program)
    constants = {names[value.name] for value in program.weights()}
    repeats = []
    for node in program.module.graph.nodes:
        if node.op == "call_function" and constants.issuperset(node.all_input_nodes):
            constants.add(node)
        elif is_call(node, aten.add, aten.mul) and shape_of(node)[0] == 2 * int(queries):
            computed = [arg for arg in node.all_input_nodes if arg not in constants]
            repeats += [arg for arg in computed if is_call(arg, aten.repeat)]
            assert all(shape_of(arg)[:-1] == shape_of(node)[:-1] for arg in computed)
    assert len(repeats) >= 2  # what q_proj and v_proj give
    expected = results(graph, graph.programs["train"])
    torch.testing.assert_close(results(graph, program), expected, rtol=1e-4, atol=1e-4)


def test_positions_are_repeated_for_every_row() -> None:
    program = for_htp(graph_of("opt", "fp32", method="mezo"), "train")
    sums = [node for node in program.module.graph.nodes if is_call(node, aten.add)]
    tables = [arg for node in sums for arg in node.all_input_nodes if is_call(arg, aten.repeat)]
    assert len(tables) == 1 and shape_of(tables[0]) == (2, 24, 64)
    assert shape_of(operand(tables[0])) == (1, 24, 64)


def test_calibration_shows_adapters_that_have_grown() -> None:
    graph = graph_of("llama", "fp32")
    calibration = torch.arange(3 * 24).reshape(3, 24)
    graph.measured = Measured(calibration=calibration)
    program = for_htp(graph, "evaluate")
    calls = calibration_inputs(graph, program)
    places = {value.name: number for number, value in enumerate(program.arguments())}
    tokens = [call[places["tokens"]] for call in calls]
    assert torch.equal(tokens[0], calibration[:2]) and torch.equal(tokens[1], calibration[[2, 0]])
    for slot in graph.slots:
        if slot.role == "trainable":
            most = max(float(call[places[slot.name]].abs().max()) for call in calls)
            assert 0.8 * ADAPTER_RANGE < most <= ADAPTER_RANGE


def test_calibration_covers_the_vocabulary_and_every_place() -> None:
    graph = graph_of("llama", "fp32")
    program = for_htp(graph, "train")
    calls = calibration_inputs(graph, program)
    places = {value.name: number for number, value in enumerate(program.arguments())}
    tokens = torch.stack([call[places["tokens"]] for call in calls])
    assert len(tokens.unique()) > 0.9 * VOCAB_SIZE
    positions = torch.stack([call[places["label_positions"]] for call in calls])
    assert len(positions.unique()) == 2 * 24


def test_calibration_tokens_are_those_of_a_file(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "warm and funny"}\n{"prompt": "It was", "completion": " great"}\n')
    rows = calibration_tokens(models.load(models.resolve(str(tmp_path))), data, 24)
    assert rows.shape == (2, 24) and rows.dtype == torch.int64
    for row, example in zip(rows, tokenize_file(data, tmp_path, 24).examples, strict=True):
        tokens = example.candidates[0].tokens
        assert row.tolist() == tokens + [0] * (24 - len(tokens))


def test_calibration_where_nothing_is_calibrated_is_refused(tmp_path: Path) -> None:
    for target in ("host", "android-npu"):
        with pytest.raises(ConfigError, match="calibrates nothing"):
            compile_bundle(
                str(tmp_path),
                method="prge",
                target=target,
                output=tmp_path / "bundle",
                settings={},
                recipe=None,
                force=False,
                calibration=tmp_path / "data.jsonl",
                progress=lambda *_: None,
            )


def test_calibration_perturbs() -> None:
    graph = graph_of("llama", "fp32", method="mezo")
    program = for_htp(graph, "train")
    for call in calibration_inputs(graph, program):
        given = dict(zip((value.name for value in program.arguments()), call, strict=True))
        assert float(given["sign"]) in (1.0, -1.0) and float(given["epsilon"]) > 0


def test_masks_leave_room_for_scores() -> None:
    graph = graph_of("llama", "fp32")
    program = for_htp(graph, "evaluate")
    before = results(graph, program)
    soften_masks(graph, program)
    lowest = min(float(graph.weights[value.name].min()) for value in program.weights())
    assert lowest == MASKED
    torch.testing.assert_close(results(graph, program), before)
