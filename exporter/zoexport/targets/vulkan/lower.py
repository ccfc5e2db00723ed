"""Lowering to the Vulkan engine: one file of all programs, as calls of its shaders over planned memory.

docs/targets.md has the format; ``runtime_ops/engines/vulkan/program_file.h`` reads and checks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoexport.core.graph import Program, TrainingGraph, Value
from zoexport.core.progress import Progress
from zoexport.core.target import Footprint, Lowered
from zoexport.ir.graphs import identifier, placeholders
from zoexport.ir.noise import take_noise
from zoexport.targets.entries import program_entry
from zoexport.targets.executorch.lower_stages import fused_program
from zoexport.targets.kinks import WIDE, has_kink
from zoexport.targets.vulkan.calls import Calls, Tensor, Weight, calls_of
from zoexport.targets.vulkan.halves import with_halves
from zoexport.targets.vulkan.pieces import Piece, pieces_of
from zoexport.targets.vulkan.places import (
    Placed,
    filled,
    place_tensors,
    place_weights,
    stored_bytes,
)
from zoexport.targets.vulkan.token_numbers import with_float_tokens

FILE = "model.vulkan.json"
FORMAT = "zoexport-vulkan-1"


def lower_vulkan(
    graph: TrainingGraph, folder: Path, progress: Progress, *, half: bool = False
) -> Lowered:
    """Lower every program of ``graph`` into ``folder/model.vulkan.json``, with tensors of fp16 where ``half``.

    The programs of ``graph`` take noise as an input afterwards.

    Raises:
        LoweringError: an operator without a shader, or more memory than a device can bind.
    """
    notes = [WIDE] if half and any(map(has_kink, graph.programs.values())) else []
    made: list[Calls] = []
    for number, program in enumerate(graph.programs.values()):
        progress("lowering programs", number / len(graph.programs))
        take_noise(graph, program)
        made.append(_calls(program, half=half))
    weights, windows = place_weights(made)
    written = {
        identifier(calls.program.name): _stated(calls, weights[calls.program.name])
        for calls in made
    }
    content = {"format": FORMAT, "windows": windows, "programs": written}
    (folder / FILE).write_text(json.dumps(content, separators=(",", ":")), "utf-8")
    return Lowered(
        "vulkan",
        graph,
        [program_entry(calls.program, FILE, calls.program.inputs) for calls in made],
        notes=notes,
    )


def _calls(program: Program, *, half: bool) -> Calls:
    is_half = half and not has_kink(program)
    calls = calls_of(fused_program(with_float_tokens(program)))
    return with_halves(calls) if is_half else calls


def footprints(
    graph: TrainingGraph, progress: Progress, *, half: bool = False
) -> dict[str, Footprint]:
    """Return each program's memory use and traffic in the pool and in the windows of weights."""
    made: list[Calls] = []
    for number, program in enumerate(graph.programs.values()):
        progress("planning programs", number / len(graph.programs))
        made.append(_calls(program, half=half))
    placed, windows = place_weights(made)
    found = {}
    for calls in made:
        name = calls.program.name
        used = filled(placed[name], len(windows))
        words = sum(
            calls.words[one] for call in calls.calls for one in [*call.read(), *call.written()]
        )
        read = stored_bytes(weight for call in calls.calls for weight in call.weights.values())
        pool = 4 * place_tensors(calls)[1]
        found[name] = Footprint(pool, 0, 4 * words + read, windows=used)
    return found


def _stated(calls: Calls, weights: Placed) -> dict[str, Any]:
    places, words = place_tensors(calls)
    program = calls.program
    numbers = {value.name: number for number, value in enumerate(program.inputs)}
    nodes = placeholders(program)
    return {
        "words": words,
        "inputs": [
            _input(places.get((nodes[value.name], 0)), weights, value) for value in program.inputs
        ],
        "outputs": [places[tensor] for tensor in calls.outputs],
        "gathers": [
            {
                "table": numbers[gather.table.name],
                "indices": numbers[gather.indices.name],
                "first": gather.first,
                "count": gather.count,
                "to": places[gather.to],
            }
            for gather in calls.gathers
        ],
        "calls": [
            _call(piece, places, calls.halves, weights, numbers, nodes)
            for call in calls.calls
            for piece in pieces_of(call, _rows(call.weights.values(), weights))
        ],
    }


def _input(at: int | None, weights: Placed, value: Value) -> dict[str, Any]:
    """Describe the copy of an input: to the pool, windows, both, or neither (gathered tables)."""
    stated: dict[str, Any] = {} if at is None else {"pool": at}
    parts = weights.get(value.name, ())
    if len(parts) == 1:
        stated |= {"window": parts[0].window, "at": parts[0].at}
    elif parts:
        stated["parts"] = [
            {"window": part.window, "at": part.at, "from": part.begin, "bytes": part.size}
            for part in parts
        ]
    return stated


def _rows(weights: Iterable[Weight], placed: Placed) -> list[int]:
    """Return the rows in each part of a call's matrix; [0] if it has no matrix."""
    for weight in weights:
        parts = placed[weight.values.name]
        return [part.size * weight.rows // sum(one.size for one in parts) for part in parts]
    return [0]


def _call(
    piece: Piece,
    places: dict[Tensor, int],
    halves: frozenset[Tensor],
    weights: Placed,
    numbers: dict[str, int],
    nodes: dict[str, Any],
) -> dict[str, Any]:
    def place(tensor: Tensor, moved: int = 0) -> int | dict[str, int]:
        if tensor in halves:
            return {"half": 2 * places[tensor] + moved}
        return places[tensor] + moved

    call = piece.call
    stated: dict[str, Any] = {"op": call.op, **call.sizes}
    for key, value in [*call.reads.items(), *call.writes.items()]:
        if isinstance(value, list):
            stated[key] = [place(one) for one in value]
        elif value is not None:
            stated[key] = place(value, piece.moved.get(key, 0))
    stated |= {key: _weight(weight, weights, piece.part) for key, weight in call.weights.items()}
    if call.op == "labels":
        names = {node: name for name, node in nodes.items()}
        (tokens,) = (one for key, one in call.reads.items() if key == "tokens")
        stated["tokens"] = numbers[names[tokens[0]]]  # type: ignore[index]
    return stated


def _weight(weight: Weight, weights: Placed, number: int) -> dict[str, Any]:
    part = weights[weight.values.name][number]
    stated = {"kind": weight.kind, "window": part.window, "at": part.at}
    if weight.scales is not None:
        stated["scales"] = weights[weight.scales.name][number].at
    if weight.group:
        stated["group"] = weight.group
    return stated
