"""Peak anonymous memory of ``zoexport compile``, in bytes by part.

The constants were measured: RssAnon of compiles, looked at every 5 ms, phase by phase (Linux on x86-64, Python 3.11,
torch 2.13, one thread), of Llama-shaped models of 0.1, 39, 107 and 219 million random weights in 2 and 8 layers; the
tokenizer's of one of 1.1 billion. Files that are mapped (libraries, weights while they are read, the mask) are not in
them.

Programs of layers are compiled with the weights left in their files. Where transformers must load a model whole (GGUF,
pickled weights, GPT-2), its weights come on top, which a configuration leaves open. Programs of the whole model
(``ios-mlx``) have all weights in memory, once more while they are packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from zoexport.core import int4
from zoexport.core.graph import LayerGraph, Program, TrainingGraph
from zoexport.core.target import LoweringMemory
from zoexport.ir.frozen import PIECE, bound_weights
from zoexport.ir.lengths import row_lengths

_MEGABYTE = 1_000_000
_FLOAT = 4
_LIBRARIES = 326 * _MEGABYTE
"""Python with torch, ExecuTorch and transformers, once it has captured a model of no layers."""
_CAPTURED_NODE = 21_000
"""Bytes of each node of the captured graph."""
_TOKENIZER = 13
"""Bytes for each byte of the tokenizer's files."""
_CHOSEN = 15
"""Bytes of each chosen weight: its place, its value, and what trying the stages leaves behind."""
_TRIAL = 10 * _MEGABYTE
"""Bytes of the library that multiplies matrices, when the stages are tried."""
_QUANTIZING = 43
"""Bytes of temporaries of each element of a piece of ``core.int4``."""


def compiling(
    lowering: LoweringMemory | None,
    graph: TrainingGraph,
    captured: TrainingGraph,
    weights: str,
    *,
    any_length: bool,
    tokenizer: int,
) -> dict[str, int] | None:
    """Return the peak memory of a compilation in bytes, by part.

    Args:
        lowering: memory of the target's compiler.
        graph: graph after the method's passes, for the longest rows. captured: graph before them.
        weights: the setting ``weights``.
        any_length: whether shorter rows have programs. tokenizer: bytes of the tokenizer's files.

    Returns:
        None for a target without measurements.
    """
    if lowering is None:
        return None
    lengths = (
        row_lengths(graph.max_length, close=graph.copies > 1) if any_length else [graph.max_length]
    )
    model = {
        "libraries": _LIBRARIES,
        "tokenizer": _TOKENIZER * tokenizer,
        "captured model": _CAPTURED_NODE * _nodes(captured),
    }
    if not isinstance(graph, LayerGraph):
        every = sum(graph.weights[name].numel() for name in graph.parameters)
        packed = round(lowering.packed[weights] * every)
        programs = lowering.base + lowering.node * _nodes(graph)
        return model | {"model": _FLOAT * every, "packed weights": packed, "programs": programs}
    chosen = _CHOSEN * sum(map(len, (graph.chosen or {}).values()))
    if chosen:
        model["chosen weights"] = chosen
    programs = lowering.base + sum(
        lowering.node * _nodes_of(program) * (1 if program.length is None else len(lengths))
        for program in graph.programs.values()
    )
    model["first values of what is trained"] = sum(
        slot.bytes for slot in graph.slots if slot.role == "trainable"
    )
    moments = [model | {"programs": programs, "weights being written": _written(graph)}]
    if any_length:
        moments.append(model | {"a stage being tried": _tried(graph)})
    return max(moments, key=lambda parts: sum(parts.values()))


def _nodes(graph: TrainingGraph) -> int:
    return sum(map(_nodes_of, graph.programs.values()))


def _nodes_of(program: Program) -> int:
    return len(program.module.graph.nodes)


def _written(graph: LayerGraph) -> int:
    """Bytes of the weight that takes the most while some of its rows are read, quantized and written."""
    most = 0
    for name, elements, quantized in _matrices(graph, bound_weights(graph)):
        rows = _FLOAT * min(elements, PIECE)
        if name in (graph.chosen or {}):
            most = max(most, 2 * rows)  # with zeros at the chosen places, and without
        elif not quantized and elements > PIECE:
            most = max(most, 2 * rows)  # those that are written, and the next ones
        temporaries = _QUANTIZING * min(elements, int4.CHUNK) if quantized else 0
        most = max(most, rows + temporaries)
    return most


def _tried(graph: LayerGraph) -> int:
    """Bytes of a layer's largest matrix, laid out for a product; embeddings and the head are not tried whole."""
    bound = {name for stage in graph.stages[1:-1] for name in stage.bind.values()}
    sizes = [elements for _, elements, _ in _matrices(graph, bound)]
    return _TRIAL + 2 * _FLOAT * max(sizes, default=0)


def _matrices(graph: TrainingGraph, names: Iterable[str]) -> Iterator[tuple[str, int, bool]]:
    """The model's own weights among what stages bind: name, elements, and whether they are stored quantized."""
    for name in names:
        source, _, part = name.rpartition(".")
        if source in graph.quantized:
            if part == "codes":
                packed = 2 if graph.quantized[source][0] else 1
                yield source, packed * graph.weights[name].numel(), True
        elif name in graph.parameters:
            yield name, graph.weights[name].numel(), False
