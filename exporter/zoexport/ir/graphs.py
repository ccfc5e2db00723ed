"""Small helpers over FX graphs that passes, checks and targets share."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node

from zoexport.core.graph import Dim, LayerGraph, Program, TrainingGraph, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir import ops as _declared  # noqa: F401  (registers the operators)
from zoexport.ir.fakes import fake_result

G = TypeVar("G", bound=TrainingGraph)

aten = torch.ops.aten
zo = torch.ops.zoexport
"""zoexport's own operators (``ir.ops``)."""

RESHAPES = (aten.reshape, aten.view, aten._unsafe_view)
QUANTIZED_LINEARS = (
    zo.linear_int4,
    zo.linear_int4_bf16,
    zo.rounded_linear,
    zo.linear_int8,
    zo.linear_int8_bf16,
)
INPUT_GRADIENTS = (
    zo.linear_int4_input_gradient,
    zo.linear_int4_bf16_input_gradient,
    zo.linear_int8_input_gradient,
    zo.linear_int8_bf16_input_gradient,
)
"""Of quantized linear layers."""

ROUTED_LINEARS = (zo.routed_linear, zo.routed_linear_int4, zo.routed_linear_int8)
"""Of experts that a router chose, forward and by their inputs."""

EXAMPLE_SIZE = 5


def output_node(module: InterpretedGraph | GraphModule) -> Node:
    """Return the graph's output node."""
    return next(node for node in reversed(module.graph.nodes) if node.op == "output")


def outputs(program: Program) -> dict[str, Node]:
    """Return the nodes that a program returns, by output name."""
    returned: Any = output_node(program.module).args[0]
    return dict(zip((value.name for value in program.outputs), returned, strict=True))


def set_outputs(program: Program, named: Iterable[tuple[Value, Node]]) -> None:
    """Make a program return these nodes, in this order."""
    pairs = list(named)
    output_node(program.module).args = (tuple(node for _, node in pairs),)
    program.outputs = [value for value, _ in pairs]


def placeholders(program: Program) -> dict[str, Node]:
    """Return a program's placeholder nodes by input name."""
    nodes = [node for node in program.module.graph.nodes if node.op == "placeholder"]
    return dict(zip((value.name for value in program.inputs), nodes, strict=True))


def add_input(program: Program, value: Value) -> Node:
    """Append an input to a program and return its placeholder.

    A dynamic dimension is recorded with a small size of its own, so that no rewrite takes it for another.
    """
    graph = program.module.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    with graph.inserting_after(last):
        node = graph.placeholder(identifier(value.name))
    sizes = [EXAMPLE_SIZE if isinstance(size, Dim) else size for size in value.shape]
    node.meta["val"] = _fake(last, getattr(torch, value.dtype), sizes)
    program.inputs.append(value)
    return node


def weight_input(program: Program, name: str, tensor: torch.Tensor) -> Node:
    """Return the placeholder of the weight ``name`` with value ``tensor``; add it if missing."""
    known = placeholders(program).get(name)
    if known is not None:
        return known
    dtype = str(tensor.dtype).removeprefix("torch.")
    return add_input(program, Value(name, "weight", dtype, tuple(tensor.shape)))


def remove_unused_weights(program: Program) -> None:
    """Drop dead nodes, and weight inputs that nothing reads."""
    program.module.graph.eliminate_dead_code()
    for name, node in placeholders(program).items():
        value = next(value for value in program.inputs if value.name == name)
        if value.role == "weight" and not node.users:
            program.module.graph.erase_node(node)
            program.inputs.remove(value)


def constant_nodes(
    program: Program, names: Container[str], leave: Callable[[Node], bool] = lambda _: False
) -> dict[Node, str]:
    """Return the inputs ``names`` and the calls that depend on them alone, in order.

    Args:
        names: names of weights.
        leave: returns whether a call is to be excluded.

    Returns:
        The name of each input; "" for a call.
    """
    found = {node: name for name, node in placeholders(program).items() if name in names}
    for node in program.module.graph.nodes:
        alone = node.op == "call_function" and found.keys() >= {*node.all_input_nodes}
        if alone and not leave(node):
            found[node] = ""
    return found


def constant_values(
    program: Program, weights: Mapping[str, torch.Tensor], leave: Callable[[Node], bool]
) -> dict[Node, Any]:
    """Compute the nodes of :func:`constant_nodes`; operators with several results give lists."""
    values: dict[Node, Any] = {}
    for node, name in constant_nodes(program, weights, leave).items():
        if name:
            values[node] = weights[name]
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        operator: Any = node.target
        with torch.no_grad():
            values[node] = operator(*args, **kwargs)
    return values


def copy_program(program: Program, name: str) -> Program:
    """Return an independent copy of a program under another name."""
    graph = copy.deepcopy(program.module.graph)
    module = InterpretedGraph(graph)
    inputs, outputs = list(program.inputs), list(program.outputs)
    return Program(name, module, inputs, outputs, program.family, program.length)


def copy_graph(graph: G) -> G:
    """Return a copy of ``graph`` that shares its tensors; a change of the copy does not affect ``graph``."""
    changed: dict[str, Any] = {
        field.name: copy.copy(value)
        for field in dataclasses.fields(graph)
        if isinstance(value := getattr(graph, field.name), dict | list | set)
    }
    if isinstance(graph, LayerGraph):
        changed["stages"] = [
            dataclasses.replace(stage, bind=dict(stage.bind)) for stage in graph.stages
        ]
    programs = {name: copy_program(program, name) for name, program in graph.programs.items()}
    return dataclasses.replace(graph, **{**changed, "programs": programs})


def is_call(node: object, *operators: Any) -> TypeGuard[Node]:
    """Return whether ``node`` calls one of ``operators`` (OpOverload or its packet)."""
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    target = node.target
    return target in operators or getattr(target, "overloadpacket", None) in operators


def is_own(node: object) -> TypeGuard[Node]:
    """Return whether ``node`` calls one of zoexport's own operators."""
    return (
        isinstance(node, Node)
        and node.op == "call_function"
        and getattr(node.target, "namespace", None) == "zoexport"
    )


def writes(node: Node) -> bool:
    """Return whether a call modifies an argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def arguments(node: Node) -> tuple[Any, ...]:
    """Return a call's positional arguments, typed as Any instead of FX's union of all kinds."""
    return node.args


def operand(node: Node, index: int = 0) -> Node:
    """Return the argument at ``index``, a node.

    Raises:
        TypeError: the argument is a number, a list or nothing.
    """
    found = node.args[index]
    if not isinstance(found, Node):
        raise TypeError(f"argument {index} of {node.target} is {found!r}, not a node")
    return found


def call(graph: torch.fx.Graph, operator: Any, *args: Any, **kwargs: Any) -> Node:
    """Insert a call at the graph's insertion point, with the shape it would have."""
    node = graph.call_function(operator, args, kwargs)
    values = torch.fx.node.map_arg(args, lambda arg: arg.meta["val"])
    mode = detect_fake_mode(values)
    assert mode is not None
    node.meta["val"] = fake_result(mode, operator, values, kwargs)
    return node


_PATHS = "nn_module_stack"


def keep_path(node: Node, like: Node) -> None:
    """Note for a node that a pass made that it belongs to the module of ``like``."""
    if _PATHS in like.meta:
        node.meta[_PATHS] = like.meta[_PATHS]


def module_path(node: Node) -> str:
    """Return the Hugging Face path of the module that a node comes from; empty if unknown."""
    stack = node.meta.get(_PATHS)
    return str([*stack.values()][-1][0]).removeprefix("model.") if stack else ""


def described(node: Node) -> str:
    """Return the operator of a call and the module that it comes from, for messages."""
    operator = str(getattr(node.target, "overloadpacket", node.target))
    path = module_path(node)
    return f"{operator} of {path}" if path else operator


def record(graph: torch.fx.Graph, like: Node, operator: Any, *args: Any) -> Node:
    """Insert a call at the graph's insertion point, recorded with the shape of ``like`` for the time being."""
    node = graph.call_function(operator, args)
    node.meta["val"] = like.meta["val"]
    return node


def _fake(like: Node, dtype: torch.dtype, shape: Iterable[int]) -> torch.Tensor:
    mode = detect_fake_mode(like.meta["val"])
    assert mode is not None
    with mode:
        return torch.empty(tuple(shape), dtype=dtype)


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape recorded for a node."""
    return tuple(node.meta["val"].shape)


def identifier(name: str) -> str:
    """``name`` in letters, digits and underscores."""
    return "".join(letter if letter.isalnum() else "_" for letter in name)
