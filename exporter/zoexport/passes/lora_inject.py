"""lora_inject: add a low-rank adapter to chosen linear layers (P-RGE section 2; LoRA, Hu et al. 2022).

Before::

    y = aten.linear(x, W, bias)

After, with the state slots A (in, rank) and B (rank, out)::

    y = aten.linear(x, W, bias)
    h = aten.matmul(x, A)
    d = aten.matmul(h, B)
    y' = y + d * scale

Left alone: linear layers that are not listed. B starts at zero, so the model is unchanged at first.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from zoexport.core import rng
from zoexport.core.errors import ConfigError, VerifyError, nearest
from zoexport.core.graph import Program, Slot, TrainingGraph, Value
from zoexport.core.lora_scaling import LoraScaling
from zoexport.ir.graphs import (
    add_input,
    aten,
    call,
    is_call,
    keep_path,
    operand,
    placeholders,
    shape_of,
)

A_TENSOR_IDS = 1 << 30
"""The first tensor id of the A matrices: their initial values come from the noise specification too."""


def lora_inject(
    graph: TrainingGraph,
    modules: list[str],
    scaling: LoraScaling,
    *,
    seed: int,
    train_a: bool = False,
) -> TrainingGraph:
    """Add adapters to ``modules`` in every program.

    Args:
        modules: paths of linear layers in the Hugging Face model, in order; their places are the
            tensor ids of their B.
        scaling: by module, the inner size, at most the layer's smaller side, and the scale of the adapter's output.
        seed: of A, see :func:`first_a`.
        train_a: whether A is trained too (LoRA) or stays as it is (LoRA-FA).

    Raises:
        VerifyError: a module's linear call is not in the graph.
        ConfigError: a rank exceeds a layer's smaller side, or a pattern names none of the modules.
    """
    scaling.check(modules)
    for number, module in enumerate(modules):
        rank = scaling.rank_of(module)
        out_features, in_features = check_rank(graph, module, rank)
        a_name, b_name = f"lora_A.{module}", f"lora_B.{module}"
        a_slot = Slot(
            a_name,
            "trainable" if train_a else "frozen",
            "float32",
            (in_features, rank),
            A_TENSOR_IDS + number,
            module,
        )
        b_slot = Slot(b_name, "trainable", "float32", (rank, out_features), number, module)
        graph.slots += [a_slot, b_slot]
        graph.initial[a_name] = first_a(graph, module, number, (in_features, rank), seed)
        graph.initial[b_name] = torch.zeros(rank, out_features)
        for program in graph.programs.values():
            _inject(program, a_slot, b_slot, scaling.scale_of(module))
    return graph


def first_a(
    graph: TrainingGraph, module: str, number: int, shape: tuple[int, int], seed: int
) -> torch.Tensor:
    """The first values of a module's A: those of ``graph.measured.directions``, or :func:`drawn_a`."""
    if graph.measured.directions is not None:
        return graph.measured.directions[module]
    return drawn_a(number, shape, seed)


def drawn_a(number: int, shape: tuple[int, int], seed: int) -> torch.Tensor:
    """A of N(0, 2/in) (He et al. 2015), as the noise specification draws it at step 0, query 0.

    Its scale belongs to the default learning_rate: what a step of B changes grows with the square of it.

    Args:
        number: the module's place among those with adapters. shape: (in, rank).
    """
    noise = rng.normals(seed, A_TENSOR_IDS + number, 0, 0, shape[0] * shape[1])
    return torch.from_numpy(noise).view(shape) * (2 / shape[0]) ** 0.5


def check_rank(graph: TrainingGraph, module: str, rank: int) -> tuple[int, int]:
    """Return the shape (out, in) of a module's weight after checking an adapter's rank.

    Raises:
        VerifyError: there is no such linear layer. ConfigError: the rank exceeds min(out, in).
    """
    weight = graph.weights.get(f"{module}.weight")
    if weight is None or weight.dim() != 2:
        raise VerifyError(
            f"[lora_inject] {module}",
            found="no linear weight of that name in the captured graph",
            expected="a linear layer",
            fix=f"Choose other lora.target_modules.{nearest(module, graph.weights)}",
        )
    out_features, in_features = weight.shape
    if rank > min(in_features, out_features):
        raise ConfigError(
            "setting 'lora.r' or 'lora.rank_pattern'",
            found=str(rank),
            expected=f"at most {min(in_features, out_features)}, the smaller side of {module}",
            fix="Choose a smaller rank, or other lora.target_modules.",
        )
    return out_features, in_features


def linear_calls(program: Program, module: str, of: str = "lora_inject") -> list[Node]:
    """Return the linear calls with a module's weight; ``of``: the pass that looks for them.

    Raises:
        VerifyError: there is none.
    """
    weight = placeholders(program).get(f"{module}.weight")
    calls = [
        user
        for user in (weight.users if weight is not None else ())
        if is_call(user, aten.linear) and user.args[1] is weight
    ]
    if not calls:
        raise VerifyError(
            f"[{of}] {module}",
            found=f"no linear call with its weight in program {program.name}",
            expected="a layer that the model calls",
            fix="Choose other lora.target_modules.",
        )
    return calls


def _inject(program: Program, a_slot: Slot, b_slot: Slot, scale: float) -> None:
    calls = linear_calls(program, a_slot.module)
    a, b = (
        add_input(program, Value(slot.name, "state", slot.dtype, slot.shape))
        for slot in (a_slot, b_slot)
    )
    nodes = program.module.graph
    for linear in calls:
        x = operand(linear)
        users = list(linear.users)
        with nodes.inserting_after(linear):
            cursor = call(nodes, aten.matmul.default, x, a)
        keep_path(cursor, linear)
        for operator, *args in (
            (aten.matmul.default, b),
            *([(aten.mul.Tensor, scale)] if scale != 1.0 else []),
        ):
            with nodes.inserting_after(cursor):
                cursor = call(nodes, operator, cursor, *args)
            keep_path(cursor, linear)
        with nodes.inserting_after(cursor):
            total = call(nodes, aten.add.Tensor, linear, cursor)
        keep_path(total, linear)
        for user in users:
            user.replace_input_with(linear, total)
        assert shape_of(total) == shape_of(linear)
