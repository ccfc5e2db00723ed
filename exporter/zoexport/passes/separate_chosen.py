"""separate_chosen: chosen elements of the linear weights are trained, the others frozen (SensZOQ, equations 7 and 21).

Before::

    y = aten.linear(x, W, bias)

After, with the chosen elements of all weights as one state slot, where they belong as a frozen tensor, and which of
them are this layer's as a pair of numbers::

    y = aten.linear(x, W_dense, bias)                   # W with zeros at the chosen places
    y' = zoexport.sparse_add_mm(y, x, values, places, range, epsilon, seed, step, 0, q, most)

The rows of ``x`` are 2q copies of the batch: copy 2i is computed with values + eps z_i, copy 2i+1 with values - eps
z_i, so the dense product runs once over all of them. With epsilon zero every row sees the values as they are. One slot
for all layers, so that layers of one shape stay one program however many of their weights are chosen.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from zoexport.core.errors import ConfigError, VerifyError
from zoexport.core.graph import Program, Slot, TrainingGraph, Value
from zoexport.core.mask import ranges
from zoexport.ir.frozen import chosen_values
from zoexport.ir.graphs import add_input, aten, call, is_call, keep_path, operand, placeholders, zo

VALUES, PLACES, RANGE = "sparse.values", "sparse.places", "sparse.range."
"""The slot, the tensor of places, and, before a parameter's name, the range of its elements in both."""

_SCALARS = (
    Value("epsilon", "epsilon", "float32", (1,)),
    Value("seed", "seed", "int64", (1,)),
    Value("step", "step", "int64", (1,)),
)
_MOST = (1 << 31) - 1


def separate_chosen(
    graph: TrainingGraph, modules: list[str], *, queries: int, density: float
) -> TrainingGraph:
    """Train the elements of ``graph.chosen`` in every program.

    Args:
        modules: paths of the linear layers in the Hugging Face model, in order.
        queries: q, random directions a step.
        density: share of each weight that counts as chosen where only sizes are asked for (``graph.chosen`` is None).

    Raises:
        ConfigError: chosen elements in a layer that is none of ``modules``, or a weight too large for 32 bits.
        VerifyError: a layer's linear call is not in the graph.
    """
    names = [f"{module}.weight" for module in modules]
    given = _spread(graph, names, density) if graph.chosen is None else graph.chosen
    _check(graph, given, names)
    none = torch.empty(0, dtype=torch.int64)
    chosen = {name: given.get(name, none) for name in names}
    found = ranges(chosen)
    slot = Slot(VALUES, "trainable", "float16", (sum(map(len, chosen.values())),), 0, "")
    graph.slots.append(slot)
    graph.initial[VALUES] = torch.cat(
        [_values(graph, name, places) for name, places in chosen.items()]
    )
    graph.weights[PLACES] = torch.cat([*chosen.values()]).int()
    for name, pair in found.items():
        graph.weights[f"{RANGE}{name}"] = torch.tensor(pair)
    graph.chosen = chosen
    graph.copies = 2 * queries
    most = max(last - first for first, last in found.values())
    for program in graph.programs.values():
        _rewrite(graph, program, slot, names, queries, most)
    return graph


def spread_count(elements: int, density: float) -> int:
    """Return the number of sparse elements of a weight, used if only sizes are needed."""
    return max(1, round(density * elements))


def _spread(graph: TrainingGraph, names: list[str], density: float) -> dict[str, torch.Tensor]:
    """Return placeholder indices: the first elements of every weight, ``density`` of each."""
    return {
        name: torch.arange(spread_count(graph.weights[name].numel(), density)) for name in names
    }


def _values(graph: TrainingGraph, name: str, places: torch.Tensor) -> torch.Tensor:
    if graph.source is None:
        return torch.zeros(len(places), dtype=torch.float16)
    return chosen_values(graph.source, name, graph.weights[name], places).half()


def _check(graph: TrainingGraph, chosen: dict[str, torch.Tensor], names: list[str]) -> None:
    for name, places in chosen.items():
        if len(places) and name not in names:
            raise ConfigError(
                "setting 'mask'",
                found=f"{len(places)} elements of {name}",
                expected="elements of the linear layers that the model trains",
                fix="Write the mask with `zoexport sensitivity` for this model.",
            )
    for name in names:
        if name in graph.weights and graph.weights[name].numel() > _MOST:
            raise ConfigError(
                f"weight {name}",
                found=f"{graph.weights[name].numel()} elements",
                expected=f"at most {_MOST}, which places of 32 bits reach",
                fix="Choose a smaller model.",
            )


def _rewrite(
    graph: TrainingGraph,
    program: Program,
    slot: Slot,
    names: list[str],
    queries: int,
    most: int,
) -> None:
    weights = placeholders(program)
    values = add_input(program, Value(slot.name, "state", slot.dtype, slot.shape))
    places = add_input(program, Value(PLACES, "weight", "int32", slot.shape))
    scalars = [add_input(program, value) for value in _SCALARS]
    for name in names:
        calls = [user for user in _users(weights.get(name)) if user.args[1] is weights[name]]
        if not calls:
            raise VerifyError(
                f"[separate_chosen] {name}",
                found=f"no linear call with it in program {program.name}",
                expected="a layer that the model calls",
                fix="Report the model's architecture.",
            )
        pair = add_input(program, Value(f"{RANGE}{name}", "weight", "int64", (2,)))
        for linear in calls:
            _add(program, linear, (values, places, pair, *scalars, slot.tensor_id, queries, most))


def _users(weight: Node | None) -> list[Node]:
    return [
        user for user in (weight.users if weight is not None else ()) if is_call(user, aten.linear)
    ]


def _add(program: Program, linear: Node, rest: tuple[object, ...]) -> None:
    readers = list(linear.users)
    nodes = program.module.graph
    with nodes.inserting_after(linear):
        total = call(nodes, zo.sparse_add_mm.default, linear, operand(linear), *rest)
    keep_path(total, linear)
    for reader in readers:
        reader.replace_input_with(linear, total)
