"""The frozen weights that programs take as inputs: read one at a time, quantized, and written to one file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from zoexport.core import hadamard, int4
from zoexport.core.graph import LayerGraph, RowReader, Stage, TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.target import Pack
from zoexport.core.tensor_file import TensorEntry, TensorFileWriter
from zoexport.core.untouched import untouched_zeros

PIECE = 1 << 23
"""Elements that are read at a time: 32 MB of float32."""


def bound_weights(graph: LayerGraph) -> list[str]:
    """Return the weights that stages bind, each once, in the order of the stages."""
    slots = {slot.name for slot in graph.slots}
    found = dict.fromkeys(name for stage in graph.stages for name in stage.bind.values())
    return [name for name in found if name not in slots]


def with_weights(read: Iterable[tuple[TrainingGraph, list[str]]]) -> TrainingGraph:
    """Return the first graph that reads weights of a bundle's file, with those that the other graphs read.

    Args:
        read: graphs with the names of the weights that they read; at least one name.
    """
    first, *others = [(graph, names) for graph, names in read if names]
    graph = first[0]
    for other, names in others:
        graph = dataclasses.replace(
            graph,
            weights={name: other.weights[name] for name in names} | graph.weights,
            parameters=graph.parameters | other.parameters,
            quantized={**graph.quantized, **other.quantized},
        )
    return graph


def write_weights(
    graph: TrainingGraph,
    names: list[str],
    reader: RowReader | None,
    path: Path,
    progress: Progress,
    pack: Pack | None = None,
) -> None:
    """Write weights to the file ``path``, a few rows in memory at a time.

    Args:
        graph: after lowering. names: names of the weights.
        reader: reads the model's parameters; None if ``graph`` has the values.
        path: the file. progress: see ``core.progress.Progress``.
        pack: how quantized weights that are read here are stored.
    """
    with TensorFileWriter(path, _entries(graph, names)) as file:
        for number, name in enumerate(names):
            progress("writing the weights", number / len(names))
            for part, begin, rows in _pieces(graph, reader, name, pack):
                if rows.dim():
                    file.write_rows(part, begin, rows)
                else:
                    file.write(part, rows)


def content_digest(graph: TrainingGraph, names: list[str], pack: Pack | None = None) -> str:
    """Return a SHA-256 of all inputs of :func:`write_weights`, except for parameter values.

    Args:
        graph, names, pack: of :func:`write_weights`.
    """
    digest = hashlib.sha256()
    form = None if pack is None else f"{pack.__module__}.{pack.__qualname__}"
    entries = [dataclasses.astuple(entry) for entry in _entries(graph, names)]
    digest.update(
        json.dumps([form, entries, graph.quantized, graph.rotated], sort_keys=True).encode()
    )
    for name in names:
        if _is_made(graph, name):
            digest.update(graph.weights[name].flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _entries(graph: TrainingGraph, names: list[str]) -> list[TensorEntry]:
    return [
        TensorEntry(
            name,
            str(graph.weights[name].dtype).removeprefix("torch."),
            tuple(graph.weights[name].shape),
        )
        for name in names
    ]


def materialize(graph: LayerGraph, reader: RowReader) -> None:
    """Give every weight that stages bind its value, for programs that are to be run here."""
    graph.weights.update(values(graph, reader, bound_weights(graph)))


def values(graph: TrainingGraph, reader: RowReader, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the values of some of the weights that stages bind; codes come with their scales."""
    found = {}
    for name in names:
        pieces = list(_pieces(graph, reader, name))
        for part in dict.fromkeys(part for part, _, _ in pieces):
            rows = [rows for owner, _, rows in pieces if owner == part]
            found[part] = torch.cat(rows) if len(rows) > 1 else rows[0]
    return found


def chosen_values(reader: RowReader, name: str, weight: Tensor, places: Tensor) -> Tensor:
    """Elements of a parameter, a few of its rows in memory at a time.

    Args:
        reader: of the model's parameters. name: of the parameter. weight: for its shape (rows, width).
        places: int64 (k), ascending, ``row * width + column``.

    Returns:
        float32 (k).
    """
    found = []
    for begin, end in _ranges(weight):
        within = _within(places, begin, end, weight.shape[1])
        if len(within):
            found.append(reader.read_rows(name, begin, end).reshape(-1)[within])
    return torch.cat(found) if found else torch.empty(0)


def _within(places: Tensor, begin: int, end: int, width: int) -> Tensor:
    """The places in rows ``begin`` to ``end`` of a matrix, counted from the first of these rows."""
    first, last = torch.searchsorted(places, torch.tensor([begin * width, end * width]))
    return places[first:last] - begin * width


class RowsWithoutChosen:
    """A :class:`RowReader` with zeros at the chosen elements, which are trained and not frozen.

    Args:
        reader: of the model's parameters.
        chosen: by parameter, int64 (k), ascending.
    """

    def __init__(self, reader: RowReader, chosen: Mapping[str, Tensor]) -> None:
        self.reader = reader
        self.chosen = chosen

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` of a parameter, float32."""
        rows = self.reader.read_rows(name, begin, end)
        places = self.chosen.get(name)
        if places is None:
            return rows
        # Freed memory of torch's allocator would stay with the process because of fragmentation.
        rows = untouched_zeros(tuple(rows.shape), rows.dtype).copy_(rows)
        rows.view(-1)[_within(places, begin, end, rows.shape[1])] = 0
        return rows


def stage_values(graph: TrainingGraph, stage: Stage) -> dict[str, Tensor]:
    """Return the values of the weights that a stage binds, by their own names."""
    slots = {slot.name for slot in graph.slots}
    names = [name for name in dict.fromkeys(stage.bind.values()) if name not in slots]
    if graph.source is None:
        return {name: graph.weights[name] for name in names}
    return values(graph, graph.source, names)


def _pieces(
    graph: TrainingGraph, reader: RowReader | None, name: str, pack: Pack | None = None
) -> Iterator[tuple[str, int, Tensor]]:
    """Yield a weight's rows in pieces: (name, first row, rows); codes include all other parts."""
    declared = graph.weights[name]
    if reader is None:
        yield name, 0, declared
        return
    if _is_made(graph, name):
        yield name, 0, declared
        return
    source, _, part = name.rpartition(".")
    if source in graph.quantized:
        if part == "codes":
            yield from _quantized(graph, reader, source, pack)
        return
    for begin, end in _ranges(declared):
        yield name, begin, reader.read_rows(name, begin, end)


def _is_made(graph: TrainingGraph, name: str) -> bool:
    """Return whether the graph contains a weight's values, which are not read from the model."""
    return name not in graph.parameters and name.rpartition(".")[0] not in graph.quantized


def _quantized(
    graph: TrainingGraph, reader: RowReader, name: str, pack: Pack | None
) -> Iterator[tuple[str, int, Tensor]]:
    group, steps = graph.quantized[name]
    for begin, end in _ranges(graph.weights[name]):
        rows = reader.read_rows(name, begin, end)
        if name in graph.rotated:
            rows = hadamard.rotate_rows(rows)
        codes, scales = (
            int4.quantize_int4(rows, group, steps=steps, where=name)
            if group
            else int4.quantize_int8(rows, where=name)
        )
        del rows  # before the next ones are read
        parts = pack(codes, scales) if pack else {"codes": codes, "scales": scales}
        for part, values in parts.items():
            yield f"{name}.{part}", begin, values


def _ranges(tensor: Tensor) -> Iterator[tuple[int, int]]:
    rows = tensor.shape[0]
    step = max(1, PIECE * rows // max(tensor.numel(), 1))
    for begin in range(0, rows, step):
        yield begin, min(begin + step, rows)
