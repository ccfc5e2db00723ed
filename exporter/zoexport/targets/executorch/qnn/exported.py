"""Whole programs on their way to ExecuTorch: exported with their weights inside, and what is said of them lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._export.verifier import TrainingIRVerifier
from torch._guards import detect_fake_mode
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Node
from torch.utils import _pytree as pytree

from zoexport.core.graph import Program
from zoexport.ir.capture import quiet
from zoexport.ir.graphs import outputs, placeholders
from zoexport.ir.shapes import record


class _Inputs(torch.nn.Module):
    """A module that owns the weights of a program, and takes its other inputs."""

    def __init__(self, program: Program, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for number, value in enumerate(program.inputs):
            if value.role == "weight":
                self.register_buffer(f"weight_{number}", _own_storage(weights[value.name]))

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        """Arguments in the program's order."""
        return arguments[0].clone()


def _own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` alone in its storage, as serializers may read a storage from its start."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return (
        tensor
        if whole and tensor.is_contiguous()
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def export_program(
    program: Program, weights: dict[str, torch.Tensor]
) -> torch.export.ExportedProgram:
    """Return a program with its weights inside, as torch.export states it."""
    example = tuple(
        torch.zeros(value.sizes(), dtype=getattr(torch, value.dtype))
        for value in program.arguments()
    )
    # A program has operators alone, so only what it takes is left to export.
    with torch.no_grad(), quiet():
        taken = torch.export.export(_Inputs(program, weights), example, strict=False)
    graph = torch.fx.Graph()
    own: dict[str, Node] = {}
    arguments: list[Node] = []
    for node, spec in zip(taken.graph.nodes, taken.graph_signature.input_specs, strict=False):
        made = graph.node_copy(node)
        if spec.kind is InputKind.BUFFER:
            own[str(spec.target)] = made
        else:
            arguments.append(made)
    copied: dict[Node, Node] = {}
    following = iter(arguments)
    for number, (value, node) in enumerate(
        zip(program.inputs, placeholders(program).values(), strict=True)
    ):
        copied[node] = own[f"weight_{number}"] if value.role == "weight" else next(following)
    for node in program.module.graph.nodes:
        if node.op == "call_function":
            copied[node] = made = graph.node_copy(node, copied.__getitem__)
            made.meta = {}
            _leave_defaults_out(made)
    returned = [copied[node] for node in outputs(program).values()]
    graph.output(tuple(returned))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    fakes = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    mode = detect_fake_mode(fakes)
    assert mode is not None
    record(module, program.name, fakes, mode)
    module.graph.eliminate_dead_code()
    specs = taken.graph_signature.input_specs
    given = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(one.name), None) for one in returned]
    names = [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]
    _, inputs = pytree.tree_flatten((example, {}))
    _, form = pytree.tree_flatten(tuple(returned))
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature([*specs], given),
        state_dict={**taken.state_dict},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], inputs, form, names))],
        example_inputs=(example, {}),
        verifiers=[TrainingIRVerifier],
    )


def _leave_defaults_out(node: Node) -> None:
    """Give a call the arguments that tracing gives it: by place where they can be, and without defaults at the end."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    declared = node.target._schema.arguments
    placed = [one.name for one in declared if not one.kwarg_only]
    defaults = {one.name: one.default_value for one in declared if one.has_default_value()}
    given: dict[str, Any] = {**dict(zip(placed, node.args, strict=False)), **node.kwargs}
    while placed and _is_default(given, placed[-1], defaults):
        given.pop(placed.pop(), None)
    node.args = tuple(given.pop(name, defaults.get(name)) for name in placed)
    node.kwargs = {
        name: value for name, value in given.items() if not _is_default(given, name, defaults)
    }


def _is_default(given: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> bool:
    if name not in given:
        return True
    value = given[name]
    return name in defaults and type(value) is type(defaults[name]) and value == defaults[name]


def _calls(exported: Any) -> Sequence[torch.fx.Node]:
    return [node for node in exported.graph_module.graph.nodes if node.op == "call_function"]


def delegates_of(exported: Any) -> list[str]:
    """Describe each delegate of a program: its backend and operator counts."""
    found = []
    for node in exported.graph_module.graph.nodes:
        if node.op != "get_attr" or "lowered_module" not in str(node.target):
            continue
        module = getattr(exported.graph_module, node.target)
        counts = Counter(_name(call) for call in _calls(module.original_module))
        operators = ", ".join(f"{name} x{count}" for name, count in sorted(counts.items()))
        found.append(f"{module.backend_id}: {operators}")
    return found


def fallback_of(exported: Any) -> dict[str, int]:
    """Return the operators that stay outside delegates, with how often."""
    skipped = ("getitem", "executorch_call_delegate", "sym_size")
    counts = Counter(_name(node) for node in _calls(exported))
    return {
        name: count
        for name, count in sorted(counts.items())
        if not any(part in name for part in skipped)
    }


_PRODUCTS = ("mm", "bmm", "addmm", "linear", "matmul")


def products_among(operators: Mapping[str, int]) -> dict[str, int]:
    """Return the matrix products among the operators of :func:`fallback_of`."""
    return {
        name: count
        for name, count in operators.items()
        if name.partition("::")[2].startswith(_PRODUCTS)
    }


def _name(node: torch.fx.Node) -> str:
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return str(schema.name)
