"""lora_linears: adapters as linear layers, which later passes quantize and train like the model's (QuZO 3.3).

Before::

    y = aten.linear(x, W, bias)

After, with the parameters A (rank, in) and B (out, rank)::

    y = aten.linear(x, W, bias)
    y' = y + aten.linear(aten.linear(x, A), B) * scale

Left alone: linear layers that are not listed. B starts at zero, so the model is unchanged at first.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zoexport.core.graph import Program, RowReader, TrainingGraph, Value
from zoexport.core.lora_scaling import LoraScaling
from zoexport.ir.graphs import add_input, aten, call, keep_path, operand
from zoexport.passes.lora_inject import check_rank, first_a, linear_calls

HALVES = ("lora_A", "lora_B")


def lora_linears(
    graph: TrainingGraph, modules: list[str], scaling: LoraScaling, *, seed: int
) -> TrainingGraph:
    """Add adapters to ``modules`` in every program.

    Args:
        modules, scaling, seed: as of ``lora_inject``.

    Raises:
        VerifyError, ConfigError: as of ``lora_inject``.
    """
    scaling.check(modules)
    values: dict[str, Tensor] = {}
    for number, module in enumerate(modules):
        rank = scaling.rank_of(module)
        out_features, in_features = check_rank(graph, module, rank)
        a = first_a(graph, module, number, (in_features, rank), seed).T
        pair = {
            f"{module}.lora_A.weight": a,
            f"{module}.lora_B.weight": torch.zeros(out_features, rank),
        }
        values |= pair
        for program in graph.programs.values():
            _inject(program, module, pair, scaling.scale_of(module))
    graph.weights |= {name: tensor.to("meta") for name, tensor in values.items()}
    graph.parameters |= values.keys()
    if graph.source is not None:
        graph.source = _WithAdapters(graph.source, values)
    return graph


class _WithAdapters:
    """A :class:`RowReader` that has the adapters too."""

    def __init__(self, reader: RowReader, values: Mapping[str, Tensor]) -> None:
        self.reader = reader
        self.values = values

    def read_rows(self, name: str, begin: int, end: int) -> Tensor:
        """Return rows ``begin`` to ``end`` of a parameter, float32."""
        if name in self.values:
            return self.values[name][begin:end]
        return self.reader.read_rows(name, begin, end)


def _inject(program: Program, module: str, pair: Mapping[str, Tensor], scale: float) -> None:
    calls = linear_calls(program, module, "lora_linears")
    a, b = (
        add_input(program, Value(name, "weight", "float32", tuple(tensor.shape)))
        for name, tensor in pair.items()
    )
    nodes = program.module.graph
    for linear in calls:
        users = list(linear.users)
        cursor = operand(linear)
        for operator, *rest in (
            (aten.linear.default, a),
            (aten.linear.default, b),
            (aten.mul.Tensor, scale),
        ):
            with nodes.inserting_after(linear if cursor is operand(linear) else cursor):
                cursor = call(nodes, operator, cursor, *rest)
            keep_path(cursor, linear)
        with nodes.inserting_after(cursor):
            total = call(nodes, aten.add.Tensor, linear, cursor)
        keep_path(total, linear)
        for user in users:
            user.replace_input_with(linear, total)
