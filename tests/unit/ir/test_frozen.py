"""The file of a split graph's weights: what it holds, how it is read from the model, and the same in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.splits import Layer, small
from zoexport.core import int4
from zoexport.core.graph import LayerGraph
from zoexport.core.target import Pack
from zoexport.ir import frozen
from zoexport.models.weights import LoadedWeights
from zoexport.targets.mlx.packing import pack

ROWS = 5
LAYERS = [f"body.{number}.linear" for number in range(2)]


class Reader:
    """Notes what is read."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.weights = LoadedWeights(model)
        self.read: list[tuple[str, int, int]] = []

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        self.read.append((name, begin, end))
        return self.weights.read_rows(name, begin, end)


class Tabled(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * torch.arange(x.shape[1])[:, None].cos()


@pytest.fixture(params=["fp32", "int4", "int8"])
def weights(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1 << 23, ROWS * 32], ids=["whole", "in pieces"])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(frozen, "PIECE", request.param)
    return int(request.param)


@pytest.fixture
def made(weights: str) -> tuple[LayerGraph, Reader, dict[str, torch.Tensor]]:
    """A graph, its model, and what the file is to hold."""
    model, graph = small(
        [Tabled(), Tabled()], "score_labels", targets=LAYERS[:1], weights=weights, tied=True
    )
    expected = {}
    for name in ("head", *LAYERS):
        weight = model.get_parameter(f"{name}.weight").detach()
        if weights == "fp32":
            expected[f"{name}.weight"] = weight
            continue
        quantize = int4.quantize_int4 if weights == "int4" else int4.quantize_int8
        parts = zip(("codes", "scales"), quantize(weight), strict=True)
        expected |= {f"{name}.weight.{part}": values for part, values in parts}
    expected |= {f"{name}.bias": model.get_parameter(f"{name}.bias").detach() for name in LAYERS}
    (table,) = (name for name in graph.weights if name.startswith("constant."))
    expected[table] = torch.arange(13.0)[:, None].cos()
    return graph, Reader(model), expected


def written(
    graph: LayerGraph,
    reader: Reader | None,
    folder: Path,
    names: list[str] | None = None,
    pack: Pack | None = None,
) -> dict[str, torch.Tensor]:
    """What the file of weights holds, of those that stages bind where no names are given."""
    path = folder / "weights.safetensors"
    names = frozen.bound_weights(graph) if names is None else names
    frozen.write_weights(graph, names, reader, path, lambda *_: None, pack)
    return load_file(path)


def test_the_file_holds_what_stages_bind(made: Any, piece: int, tmp_path: Path) -> None:
    graph, reader, expected = made
    found = written(graph, reader, tmp_path)
    assert found.keys() == expected.keys() == set(frozen.bound_weights(graph))
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


def test_a_weight_is_read_once_a_few_rows_at_a_time(made: Any, piece: int, tmp_path: Path) -> None:
    graph, reader, _ = made
    written(graph, reader, tmp_path)
    assert all((end - begin) * 32 <= max(piece, 32 * 32) for _, begin, end in reader.read)
    ranges: dict[str, list[tuple[int, int]]] = {}
    for name, begin, end in reader.read:
        ranges.setdefault(name, []).append((begin, end))
    # The table is no parameter, and the tied embedding is one.
    assert set(ranges) == {"head.weight"} | {f"{n}.{p}" for n in LAYERS for p in ("weight", "bias")}
    whole = piece > 1 << 20
    assert ranges["head.weight"] == ([(0, 11)] if whole else [(0, 5), (5, 10), (10, 11)])
    assert ranges["body.0.linear.bias"] == [(0, 32)]


@pytest.mark.parametrize("weights", ["int4", "int8"], indirect=True)
def test_packed_in_pieces_as_at_once(made: Any, weights: str, piece: int, tmp_path: Path) -> None:
    graph, reader, expected = made
    for name in (f"{path}.weight" for path in ("head", *LAYERS)):
        parts = [f"{name}.codes", f"{name}.scales"]
        for tensors in (graph.weights, expected):
            packed = pack(*(tensors.pop(part) for part in parts))
            tensors |= {f"{name}.{part}": tensor for part, tensor in packed.items()}
    found = written(graph, reader, tmp_path, list(expected), pack)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name
    assert found["head.weight.codes"].dtype == torch.uint32
    assert ("head.weight.biases" in found) == (weights == "int4")


def test_weights_with_values_are_written_by_name(tmp_path: Path) -> None:
    values = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(3), "c": torch.zeros(2)}
    values["number"] = torch.tensor(2.0)
    graph = LayerGraph({}, values, [], {}, max_length=8, length=8, rows=1)
    found = written(graph, None, tmp_path, ["b", "number", "a"])
    assert found.keys() == {"a", "b", "number"}
    assert all(torch.equal(found[name], values[name]) for name in found)


def test_values_in_memory_are_those_of_the_file(made: Any, piece: int) -> None:
    graph, reader, expected = made
    frozen.materialize(graph, reader)
    for name, value in expected.items():
        assert graph.weights[name].device.type == "cpu"
        assert torch.equal(graph.weights[name], value), name


def test_slots_are_no_weights(made: Any) -> None:
    graph, _, _ = made
    assert not [name for name in frozen.bound_weights(graph) if name.startswith("lora_")]
    # In the order of the stages, each once.
    names = frozen.bound_weights(graph)
    assert len(names) == len(set(names)) and names[0].startswith("head.weight")
