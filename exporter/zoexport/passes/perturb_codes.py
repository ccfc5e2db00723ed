"""perturb_codes: the integers of quantized linear weights are trained, perturbed inside their products (QuZO).

Before, each stage binding frozen codes and scales::

    layer.0(hidden; W.codes, W.scales)    y = zoexport.linear_int4(x, W.codes, W.scales, bias)

After, the codes being a state slot of each stage's own::

    layer.0(hidden; W.codes, W.scales, W.number, quzo.table)
        y = zoexport.grid_linear_int4(x, W.codes, W.scales, bias, quzo.table, W.number, epsilon, seed, step, q)

The rows of ``x`` are 2q copies of the batch: copy 2i is computed with clamp(w + Q1(u_i)), copy 2i+1 with
clamp(w - Q1(u_i)). With epsilon zero every row sees the weights as they are. ``W.number`` is the slot's number in the
noise specification, an input so that layers of one shape stay one program. Layers with other
trained weights (``lora.layers_to_transform=last:K``) become another program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program, Slot, Value
from zoexport.core.grid import pair_table
from zoexport.ir.frozen import values
from zoexport.ir.graphs import (
    add_input,
    arguments,
    call,
    copy_program,
    is_call,
    keep_path,
    placeholders,
    zo,
)

TABLE = "quzo.table"
CODES, SCALES, NUMBER = "codes", "scales", "number"

_SCALARS = (
    Value("epsilon", "epsilon", "float32", (1,)),
    Value("seed", "seed", "int64", (1,)),
    Value("step", "step", "int64", (1,)),
)
_PRODUCTS = {zo.linear_int4: zo.grid_linear_int4, zo.linear_int8: zo.grid_linear_int8}


def perturb_codes(
    graph: LayerGraph,
    modules: Sequence[str],
    *,
    queries: int,
    eps: float,
    bits: int,
    estimator: str,
) -> LayerGraph:
    """Train the codes of every module's weight.

    Args:
        graph: split and quantized. Initial values are read from its ``source`` if it has one.
        modules: paths of the linear layers in the Hugging Face model, in order.
        queries: q, perturbation directions per step.
        eps, bits: perturbation size and width (``core.grid.pair_table``). estimator: for updates.

    Raises:
        VerifyError: a module's weight is not a quantized layer's of its own, in some stage.
    """
    names = [f"{module}.weight" for module in modules]
    numbers = {name: number for number, name in enumerate(names)}
    table = torch.from_numpy(pair_table(eps, bits))
    inputs = [Value(TABLE, "state", "int32", tuple(table.shape)), *_SCALARS]
    found: set[str] = set()
    _part_stages(graph, numbers.keys())
    for program in graph.programs.values():
        stages = graph.stages_of(program)
        for local in [value.name for value in program.weights()]:
            owner = local.removesuffix(f".{CODES}")
            bound = [stage.bind[local].removesuffix(f".{CODES}") for stage in stages]
            if owner == local or not numbers.keys() & set(bound):
                continue
            if not numbers.keys() >= set(bound):
                raise _not_alone(sorted(set(bound) - numbers.keys())[0])
            _rewrite(program, owner, inputs, queries)
            for stage, name in zip(stages, bound, strict=True):
                stage.bind |= {f"{owner}.{NUMBER}": f"{name}.{NUMBER}", TABLE: TABLE}
            found |= set(bound)
    if missing := [name for name in names if name not in found]:
        raise _not_alone(missing[0])
    graph.slots += [_slot(graph, name, number) for name, number in numbers.items()]
    graph.slots.append(Slot(TABLE, "frozen", "int32", tuple(table.shape), len(names), ""))
    graph.initial[TABLE] = table
    step = 1.0
    for name, number in numbers.items():
        graph.weights[f"{name}.{NUMBER}"] = torch.tensor([number])
        step = _take(graph, name, step)
    graph.grid = {"table": TABLE, "eps": eps, "estimator": estimator}
    graph.copies = 2 * queries
    return graph


def _part_stages(graph: LayerGraph, trained: Collection[str]) -> None:
    """Give stages that train other weights than the first of their program does a program of their own."""
    for program in list(graph.programs.values()):
        codes = [value.name for value in program.weights() if value.name.endswith(f".{CODES}")]
        families: dict[tuple[bool, ...], str] = {}
        for number, stage in enumerate(graph.stages):
            if stage.forward != program.family:
                continue
            kind = tuple(stage.bind[local].removesuffix(f".{CODES}") in trained for local in codes)
            if kind not in families:
                families[kind] = f"{program.family}.{len(families)}" if families else stage.forward
                made = copy_program(program, families[kind])
                graph.programs.setdefault(
                    families[kind], dataclasses.replace(made, family=families[kind])
                )
            graph.stages[number] = dataclasses.replace(stage, forward=families[kind])


def _not_alone(name: str) -> VerifyError:
    return VerifyError(
        f"[perturb_codes] {name}",
        found="no quantized linear layer that reads it and nothing else",
        expected="a linear layer's own weight",
        fix="Train other layers, or adapters: train=lora.",
    )


def _slot(graph: LayerGraph, name: str, number: int) -> Slot:
    codes = graph.weights[f"{name}.{CODES}"]
    dtype = str(codes.dtype).removeprefix("torch.")
    module = name.removesuffix(".weight")
    return Slot(f"{name}.{CODES}", "trainable", dtype, tuple(codes.shape), number, module)


def _take(graph: LayerGraph, name: str, step: float) -> float:
    """Make qweight the state's initial value, and store the scales as a tensor of the graph.

    Args:
        step: the scale of an all-zero weight (an adapter's B), which defines no scale.

    Returns:
        The weight's largest scale.
    """
    codes, scales = f"{name}.{CODES}", f"{name}.{SCALES}"
    if graph.source is None:
        graph.initial[codes] = graph.weights[codes]
    else:
        read = values(graph, graph.source, [codes])
        graph.initial[codes], found = read[codes], read[scales]
        if found.dtype == torch.float32 and not read[codes].any():
            found = torch.full_like(found, step)
        graph.weights[scales], step = found, float(found.max())
    del graph.weights[codes], graph.quantized[name]
    return step


def _rewrite(program: Program, owner: str, inputs: Sequence[Value], queries: int) -> None:
    """Read the codes ``owner.codes`` as state, in products that perturb; ``inputs``: the table and the scalars."""
    codes = placeholders(program)[f"{owner}.{CODES}"]
    program.inputs = [
        dataclasses.replace(value, role="state") if value.name == f"{owner}.{CODES}" else value
        for value in program.inputs
    ]
    number = add_input(program, Value(f"{owner}.{NUMBER}", "weight", "int64", (1,)))
    table, *scalars = (
        placeholders(program).get(value.name) or add_input(program, value) for value in inputs
    )
    nodes = program.module.graph
    for user in list(codes.users):
        product = next((made for of, made in _PRODUCTS.items() if is_call(user, of)), None)
        if product is None:
            raise _not_alone(owner)
        x, _, scales, *bias = arguments(user)
        rest = (bias[0] if bias else None, table, number, *scalars, queries)
        with nodes.inserting_before(user):
            made = call(nodes, product.default, x, codes, scales, *rest)
        keep_path(made, user)
        user.replace_all_uses_with(made)
        nodes.erase_node(user)
