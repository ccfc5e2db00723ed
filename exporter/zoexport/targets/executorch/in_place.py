"""ExecuTorch's rewrites of single operators, on the graph as it stands.

ExecuTorch 1.5 decomposes a program by tracing it twice, and each of three passes to its edge dialect traces it again,
though most of them replace one operator by another of the same shape. What is found here gives the graph that tracing
gives; other graphs are traced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils import _pytree as pytree

from zoexport.ir.graphs import arguments, aten, call, is_call, operand, record

_SCALARS = (bool, int, float)
_SOURCE = "from_node"


def note_sources(module: GraphModule) -> None:
    """Note for each call that it is its own source, as a pass does: what one source becomes has one debug handle."""
    for node in module.graph.nodes:
        if node.op == "call_function" and _SOURCE not in node.meta:
            node.meta[_SOURCE] = [NodeSource(node, "", NodeSourceAction.CREATE)]


def _note_parts(graph: Graph) -> None:
    """Note for the parts of a result that they come from its call, as decomposing does."""
    for node in graph.nodes:
        if is_call(node, operator.getitem):
            node.meta[_SOURCE] = operand(node).meta.get(_SOURCE, node.meta[_SOURCE])


def decompose(program: torch.export.ExportedProgram, table: Container[Any]) -> None:
    """Decompose the operators that language models have most of, where ``table`` asks for it."""
    graph = program.graph_module.graph
    note_sources(program.graph_module)
    _note_parts(graph)
    for node in list(graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or not (node.target is aten.reshape.default or node.target in table):
            continue
        with graph.inserting_before(node):
            made = rule(graph, node)
        if made is not None:
            for one in (made, *made.all_input_nodes):
                if one.op == "call_function" and _SOURCE not in one.meta:
                    one.meta = {**node.meta, "val": one.meta["val"]}
            returned = any(user.op == "output" for user in node.users)
            node.replace_all_uses_with(made)
            if returned:
                program.graph_signature.replace_all_uses(node.name, made.name)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _reshape(graph: Graph, node: Node) -> Node | None:
    """reshape: a view, of a copy where the elements do not lie in order."""
    source, sizes = arguments(node)
    value, shape = source.meta["val"], node.meta["val"].shape
    if value.is_contiguous():
        return record(graph, node, aten.view.default, source, sizes)
    if not _is_fixed(value):
        return None
    try:
        value.view(shape)
    except (RuntimeError, ValueError):
        source = call(graph, aten.clone.default, source, memory_format=torch.contiguous_format)
    return call(graph, aten.view.default, source, [*shape])


def _transpose(graph: Graph, node: Node) -> Node:
    """transpose: permute."""
    source, *pair = arguments(node)
    order = list(range(source.meta["val"].dim()))
    first, second = (order[dim] for dim in pair)
    order[first], order[second] = second, first
    return record(graph, node, aten.permute.default, source, order)


def _softmax(graph: Graph, node: Node) -> Node | None:
    """softmax that keeps the dtype: _softmax."""
    source, dim, *dtype = arguments(node)
    if node.kwargs or dtype not in ([], [None], [source.meta["val"].dtype]):
        return None
    return call(graph, aten._softmax.default, source, dim, False)


def _silu(graph: Graph, node: Node) -> Node | None:
    """silu: x sigmoid(x)."""
    source = operand(node)
    if source.meta["val"].dtype != torch.float32:
        return None
    return call(graph, aten.mul.Tensor, source, call(graph, aten.sigmoid.default, source))


_RULES: dict[Any, Callable[[Graph, Node], Node | None]] = {
    aten.reshape.default: _reshape,
    aten.transpose.int: _transpose,
    aten.softmax.int: _softmax,
    aten.silu.default: _silu,
}


def is_plain(module: GraphModule) -> bool:
    """Whether the graph has operators and tensors alone, and no blocks."""
    return all(
        node.op in ("placeholder", "output")
        or (
            node.op == "get_attr"
            and isinstance(getattr(module, str(node.target), None), torch.Tensor)
        )
        or (
            node.op == "call_function"
            and (
                isinstance(node.target, torch._ops.OpOverload)
                or getattr(node.target, "__module__", None) == "_operator"
            )
        )
        for node in module.graph.nodes
    )


def is_fixed(node: Node) -> bool:
    """Whether all that a node gives has sizes that are numbers."""
    return all(
        _is_fixed(value) if isinstance(value, torch.Tensor) else not isinstance(value, torch.SymInt)
        for value in pytree.tree_leaves(node.meta.get("val"))
    )


def copy_views(module: GraphModule) -> None:
    """Views become copies of what they show, and what follows has the layouts that this gives."""
    from torch._export.passes.replace_view_ops_with_view_copy_ops_pass import (
        _NON_FUNCTIONAL_OPS_TO_FUNCTIONAL_OPS as FUNCTIONAL,
    )
    from torch._export.passes.replace_view_ops_with_view_copy_ops_pass import (
        get_view_copy_of_view_op,
    )

    note_sources(module)
    changed: set[Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        copied = None
        if isinstance(node.target, torch._ops.OpOverload):
            copied = FUNCTIONAL.get(node.target) or get_view_copy_of_view_op(node.target._schema)
        if copied is not None:
            node.target = copied
        moved = copied is not None and not _lies_in_order(node.meta["val"])
        if (moved or not changed.isdisjoint(node.all_input_nodes)) and _recorded_anew(node):
            changed.add(node)
    module.recompile()


def scalars_to_tensors(module: GraphModule) -> None:
    """Numbers that an operator takes for tensors become constants of the module."""
    graph, count = module.graph, 0
    for node in list(graph.nodes):
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        given: dict[Any, Any] = {**dict(enumerate(node.args)), **node.kwargs}
        places = [
            argument.name if argument.name in node.kwargs else place
            for place, argument in enumerate(schema.arguments)
            if isinstance(argument.type, torch.TensorType)
        ]
        found = [place for place in places if isinstance(given.get(place), _SCALARS)]
        if not found:
            continue
        mode = detect_fake_mode([one.meta["val"] for one in node.all_input_nodes])
        assert mode is not None
        for place in found:
            name = f"_tensor_constant{count}"
            count += 1
            number = torch.tensor(given[place])
            setattr(module, name, number)
            with graph.inserting_before(node):
                constant = graph.create_node("get_attr", name)
            constant.meta = {**node.meta, "val": mode.from_tensor(number)}
            given[place] = constant
        node.args = tuple(given[place] for place in range(len(node.args)))
        node.kwargs = {name: given[name] for name in node.kwargs}
        _recorded_anew(node)
    module.recompile()


def to_edge_operators(module: GraphModule) -> None:
    """Operators become those of the edge dialect."""
    from executorch.exir.passes.replace_aten_with_edge_pass import (
        aten_to_edge,
        should_lower_to_edge,
    )

    for node in module.graph.nodes:
        if node.op == "call_function" and should_lower_to_edge(node.target):
            node.target = aten_to_edge(node.target)
    module.recompile()


def _recorded_anew(node: Node) -> bool:
    """Record what a call gives for what its inputs record now; whether that lies otherwise than before."""
    before = node.meta["val"]
    args, kwargs = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    mode = detect_fake_mode([one.meta["val"] for one in node.all_input_nodes])
    function: Any = node.target
    if mode is None:
        return False
    with mode, torch.no_grad():
        made = function(*args, **kwargs)
    node.meta["val"] = made
    return not _lie_alike(before, made)


def _is_fixed(value: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*value.shape, *value.stride()))


def _lies_in_order(value: Any) -> bool:
    """Whether a tensor of known sizes has the strides of a new one."""
    if not isinstance(value, torch.Tensor) or not _is_fixed(value):
        return False
    expected, strides = 1, []
    for size in reversed(value.shape):
        strides.append(expected)
        expected *= max(size, 1)
    return value.stride() == tuple(reversed(strides))


def _lie_alike(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        fixed = _is_fixed(one) and _is_fixed(other)
        return fixed and one.stride() == other.stride() and one.dtype == other.dtype
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_lie_alike, one, other))
    return type(one) is type(other) is int and one == other
