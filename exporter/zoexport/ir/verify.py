"""Verification: a table of rules that a training graph obeys after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from zoexport.core.errors import VerifyError
from zoexport.core.graph import Dim, LayerGraph, Program, Stage, TrainingGraph, Value
from zoexport.ir.graphs import output_node, outputs, placeholders, writes

Rule = Callable[[TrainingGraph, Program], Iterator[str]]


def _placeholders_are_inputs(_: TrainingGraph, program: Program) -> Iterator[str]:
    count = sum(node.op == "placeholder" for node in program.module.graph.nodes)
    if count != len(program.inputs):
        yield f"{count} placeholders for {len(program.inputs)} inputs"


def _returns_are_outputs(_: TrainingGraph, program: Program) -> Iterator[str]:
    returned = output_node(program.module).args[0]
    count = len(returned) if isinstance(returned, tuple | list) else 1
    if count != len(program.outputs):
        yield f"{count} returned values for {len(program.outputs)} outputs"


def _names_are_unique(_: TrainingGraph, program: Program) -> Iterator[str]:
    for values in (program.inputs, program.outputs):
        names = [value.name for value in values]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{name!r} stands {names.count(name)} times"


def _named(graph: TrainingGraph, program: Program, value: Value) -> list[str]:
    """Return a value's tensors: one per stage, or its own name if no stage binds it."""
    if not isinstance(graph, LayerGraph):
        return [value.name]
    stages = graph.stages_of(program)
    return [stage.bind.get(value.name, f"{stage.name}: {value.name}") for stage in stages] or [
        value.name
    ]


def _nothing_is_written(_: TrainingGraph, program: Program) -> Iterator[str]:
    for node in program.module.graph.nodes:
        if writes(node):
            yield f"node {node.name} calls {node.target}, which writes into an operand"


def _weights_exist(graph: TrainingGraph, program: Program) -> Iterator[str]:
    for value in program.weights():
        for name in _named(graph, program, value):
            tensor = graph.weights.get(name)
            if tensor is None:
                yield f"weight {name!r} has no tensor"
            elif (_dtype(tensor), tuple(tensor.shape)) != (value.dtype, value.shape):
                yield (
                    f"weight {name!r} is {_dtype(tensor)} {tuple(tensor.shape)}, "
                    f"declared {value.dtype} {value.shape}"
                )


def _state_has_slots(graph: TrainingGraph, program: Program) -> Iterator[str]:
    slots = {slot.name: slot for slot in graph.slots}
    for value in (*program.inputs, *program.outputs):
        if value.role != "state":
            continue
        for name in _named(graph, program, value):
            slot = slots.get(name)
            if slot is None:
                yield f"state {name!r} has no slot"
            elif (slot.dtype, slot.shape) != (value.dtype, value.shape):
                yield f"state {name!r} differs from its slot {slot.dtype} {slot.shape}"


def _slots_have_initial_values(graph: TrainingGraph, _: Program) -> Iterator[str]:
    for slot in graph.slots:
        tensor = graph.initial.get(slot.name)
        if tensor is None or tuple(tensor.shape) != slot.shape:
            yield f"slot {slot.name!r} has no initial value of shape {slot.shape}"


def _training_returns_the_state(graph: TrainingGraph, program: Program) -> Iterator[str]:
    if program.name != "train":
        return
    returned = {value.name for value in program.outputs if value.role == "state"}
    for slot in graph.slots:
        if slot.role == "trainable" and slot.name not in returned:
            yield f"trainable slot {slot.name!r} is not returned"


def _shapes_are_declared(graph: TrainingGraph, program: Program) -> Iterator[str]:
    if not graph.rows:
        return
    named = [*zip(program.inputs, placeholders(program).values(), strict=True)]
    named += [*zip(program.outputs, outputs(program).values(), strict=True)]
    for value, node in named:
        recorded = node.meta.get("val")
        if isinstance(recorded, torch.Tensor) and not _agree(value, recorded):
            yield (
                f"{value.name!r} is {_dtype(recorded)} {tuple(recorded.shape)}, "
                f"declared {value.dtype} {value.shape}"
            )


def _bound_graphs_are_static(graph: TrainingGraph, program: Program) -> Iterator[str]:
    if not graph.rows:
        return
    for node in program.module.graph.nodes:
        recorded = node.meta.get("val")
        sizes = recorded.shape if isinstance(recorded, torch.Tensor) else [recorded]
        if any(isinstance(size, torch.SymInt) for size in sizes):
            yield f"node {node.name} still has a symbolic size"


def _stages(graph: TrainingGraph) -> list[Stage]:
    return graph.stages if isinstance(graph, LayerGraph) else []


def _families(graph: TrainingGraph) -> dict[str, list[Program]]:
    found: dict[str, list[Program]] = {}
    for program in graph.programs.values():
        found.setdefault(program.called, []).append(program)
    return found


def _stages_have_programs(graph: TrainingGraph, _: Program) -> Iterator[str]:
    known = _families(graph)
    for stage in _stages(graph):
        for family in stage.families:
            if family not in known:
                yield f"stage {stage.name!r} calls {family!r}, which is no program"


def _stages_bind_what_is_read(graph: TrainingGraph, _: Program) -> Iterator[str]:
    known = _families(graph)
    for stage in _stages(graph):
        programs = [program for family in stage.families for program in known.get(family, [])]
        read = {value.name for program in programs for value in program.inputs}
        for name in sorted(stage.bind.keys() - read):
            yield f"stage {stage.name!r} binds {name!r}, which its programs do not read"


def _stages_train_their_slots(graph: TrainingGraph, _: Program) -> Iterator[str]:
    known = _families(graph)
    trained = {slot.name for slot in graph.slots if slot.role == "trainable"}
    for stage in _stages(graph):
        backward = (*known.get(stage.backward or "", []), *known.get(stage.from_saved or "", []))
        for program in backward:
            given = {value.name for value in program.outputs}
            for local, name in stage.bind.items():
                if name in trained and local not in given:
                    yield f"program {program.name} gives no gradient of {name!r}"


RULES: dict[str, Rule] = {
    "every placeholder is a declared input": _placeholders_are_inputs,
    "every returned value is a declared output": _returns_are_outputs,
    "names are unique": _names_are_unique,
    "operators give new values": _nothing_is_written,
    "every weight has its tensor": _weights_exist,
    "every state value has its slot": _state_has_slots,
    "every slot has an initial value": _slots_have_initial_values,
    "train returns every trainable slot": _training_returns_the_state,
    "every stage has its programs": _stages_have_programs,
    "stages bind what their programs read": _stages_bind_what_is_read,
    "backward programs give the gradients of trained slots": _stages_train_their_slots,
    "sizes are numbers once rows are bound": _bound_graphs_are_static,
    "recorded shapes are the declared ones once rows are bound": _shapes_are_declared,
}


def verify(graph: TrainingGraph) -> None:
    """Check every rule on every program.

    Raises:
        VerifyError: names the pass just applied, those before it, the program, the rule and what broke it.
    """
    *before, last = graph.provenance or ["capture"]
    for program in graph.programs.values():
        for name, rule in RULES.items():
            for problem in rule(graph, program):
                raise VerifyError(
                    f"[{last}] after [{', '.join(before)}]: program {program.name}",
                    found=problem,
                    expected=name,
                    fix="This is a fault of zoexport; report the model and the settings.",
                )
        program.module.graph.lint()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _agree(value: Value, tensor: torch.Tensor) -> bool:
    if _dtype(tensor) != value.dtype or tensor.dim() != len(value.shape):
        return False
    return all(
        isinstance(declared, Dim) or isinstance(size, torch.SymInt) or declared == size
        for declared, size in zip(value.shape, tensor.shape, strict=True)
    )
