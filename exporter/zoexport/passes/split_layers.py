"""split_layers: the model becomes one small program for each distinct part, and stages that apply them in order.

Before, one program ``forward``::

    h0 = aten.embedding(W_e, tokens)
    h1 = h0 + aten.linear(norm(h0, layers.0.norm), layers.0.W)
    h2 = h1 + aten.linear(norm(h1, layers.1.norm), layers.1.W)
    y  = aten.linear(norm(h2, final), W_e)

After (MeBP section 3, "Gradient checkpointing compilation")::

    embedding(tokens; W_e) -> h          stages: embedding
    layer.0(h; norm, W) -> h                     layer.0 with norm = layers.0.norm, W = layers.0.W
                                                 layer.0 with norm = layers.1.norm, W = layers.1.W
    head(h; final, W_e) -> y                     head

What tokens alone decide, such as an encoder's mask, does not pass from part to part: each that reads it computes it
from the tokens, so that it is neither kept nor differentiated.

Layers are the same where their calls, numbers and shapes are; weights, adapters and tables (masks, rotary embeddings)
are inputs that each stage binds. Refused: layers that do not run one after another, and values other than float32 that
pass from one to the next.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, ModelGraph, Program, Stage, TrainingGraph, Value
from zoexport.core.interpreted import InterpretedGraph
from zoexport.ir.graphs import (
    arguments,
    aten,
    call,
    identifier,
    is_call,
    outputs,
    placeholders,
)
from zoexport.ir.segments import layer_of, layer_stack, segments

EMBEDDING, HEAD = "embedding", "head"


def split_layers(graph: ModelGraph) -> LayerGraph:
    """Replace ``forward`` by the distinct programs, which stages apply."""
    whole = graph.programs.pop("forward")
    stack = layer_stack(whole)
    alone = _of_tokens_alone(graph, whole)
    parts = [[node for node in part if node not in alone] for part in segments(whole, stack)]
    parts = _one_row_for_each_token(parts, graph.rows, graph.length)
    passed = [(value, node) for value, node in _named(whole) if value.role == "tokens"]
    families: dict[Any, str] = {}
    scalars = _scalars(graph, whole)
    stages: list[Stage] = []
    _store_masks_as_numbers(graph)
    for number, nodes in enumerate(parts):
        if number == len(parts) - 1:
            results = [(whole.outputs[0], outputs(whole)["logits"])]
            part = _Part(whole, graph.parameters, scalars, "", HEAD)
        else:
            later = _read_later(passed, nodes, parts[number + 1 :])
            results = _activations([node for node in later if node not in alone])
            name = _layer_path(nodes, stack) if number else EMBEDDING
            part = _Part(whole, graph.parameters, scalars, f"{name}." if number else "", name)
        program = part.extract(nodes, passed, results)
        family = part.stage
        if part.prefix:
            family = families.setdefault(_identity(program), f"layer.{len(families)}")
        program.name = program.family = family
        graph.programs.setdefault(family, program)
        stages.append(Stage(part.stage, family, None, part.bind))
        passed = results
    return graph.in_stages(stages)


def _of_tokens_alone(graph: TrainingGraph, program: Program) -> set[Node]:
    """Return the tokens, and calls that read them and nothing of the model's own."""
    own = {
        node
        for value, node in _named(program)
        if value.role == "state" or value.name in graph.parameters
    }
    found = {placeholders(program)["tokens"]}
    for node in program.module.graph.nodes:
        if own.intersection(node.all_input_nodes):
            own.add(node)
        elif found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _one_row_for_each_token(parts: list[list[Node]], rows: int, length: int) -> list[list[Node]]:
    """Move what makes one row for each token from the head's part to the last layer's (Gemma 3n has four until then).

    Args:
        parts: calls of each part. rows, length: sequences and their tokens.
    """
    *layers, head = parts
    before = {node for part in layers for node in part}
    taken = {node for call in head for node in call.all_input_nodes} & before
    if any(_is_row_for_each_token(node, rows, length) for node in taken):
        return parts
    for number, node in enumerate(head, 1):
        before.add(node)
        taken = {one for call in head[number:] for one in call.all_input_nodes} & before
        if len(taken) == 1 and _is_row_for_each_token(next(iter(taken)), rows, length):
            return [*layers[:-1], [*layers[-1], *head[:number]], head[number:]]
    return parts


def _is_row_for_each_token(node: Node, rows: int, length: int) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and tuple(value.shape[:-1]) == (rows, length)


def _layer_path(nodes: list[Node], stack: str) -> str:
    number = next(layer for node in nodes if (layer := layer_of(node, stack)) is not None)
    return f"{stack}.{number}"


def _named(program: Program) -> list[tuple[Value, Node]]:
    return [*zip(program.inputs, placeholders(program).values(), strict=True)]


def _scalars(graph: TrainingGraph, program: Program) -> dict[Node, Any]:
    """The values of inputs without dimensions, which stand in the code instead (Gemma scales its embedding so)."""
    return {
        node: graph.weights[value.name].item()
        for value, node in _named(program)
        if value.role == "weight" and not value.shape and value.name not in graph.parameters
    }


def _store_masks_as_numbers(graph: TrainingGraph) -> None:
    """Tables of truth values become 0 and 1: an input is read as numbers everywhere."""
    for name, tensor in graph.weights.items():
        if tensor.dtype == torch.bool:
            graph.weights[name] = tensor.float()


def _read_later(
    passed: list[tuple[Value, Node]], nodes: list[Node], later: list[list[Node]]
) -> list[Node]:
    """Return the passed and computed values that segments ``later`` read, in graph order."""
    readers = {node for part in later for node in part}
    return [node for node in [*(node for _, node in passed), *nodes] if readers & node.users.keys()]


def _activations(nodes: list[Node]) -> list[tuple[Value, Node]]:
    """Return the values that pass from a segment to the next."""
    found = []
    for number, node in enumerate(nodes):
        value = node.meta["val"]
        if value.dtype != torch.float32:
            raise VerifyError(
                f"[split_layers] {node.name}",
                found=f"a value of type {value.dtype} that later layers read",
                expected="float32 values, which gradients can pass",
                fix="Report the model's architecture.",
            )
        name = "hidden" if len(nodes) == 1 else f"hidden.{number}"
        found.append((Value(name, "activation", "float32", tuple(value.shape)), node))
    return found


class _Part:
    """One segment on its way to be a program.

    Args:
        whole: the program that it is part of.
        parameters: the names of weights that are the model's own.
        scalars: its inputs that are numbers.
        prefix: the path of the segment's layer with a final dot, or nothing.
        stage: the stage's name.
    """

    def __init__(
        self,
        whole: Program,
        parameters: set[str],
        scalars: dict[Node, Any],
        prefix: str,
        stage: str,
    ) -> None:
        self.values = {node: value for value, node in _named(whole)}
        self.parameters = parameters
        self.prefix = prefix
        self.stage = stage
        self.bind: dict[str, str] = {}
        self.inputs: list[Value] = []
        self.graph = Graph()
        self.copied: dict[Node, Any] = dict(scalars)

    def extract(
        self,
        nodes: list[Node],
        passed: list[tuple[Value, Node]],
        results: list[tuple[Value, Node]],
    ) -> Program:
        """Return the program that computes ``results`` from ``passed``."""
        for value, node in passed:
            self._input(node, value)
        before = _read_before(nodes, {*self.copied})
        for node in before:
            if node in self.values:
                self._input(node, self._local(self.values[node]))
        for node in [*before, *nodes]:
            if node not in self.copied:
                self.copied[node] = self._copy(node)
        returned = []
        for _, node in results:
            copied = self.copied[node]
            # An output must not be an input itself.
            passes = copied.op == "placeholder"
            returned.append(call(self.graph, aten.clone.default, copied) if passes else copied)
        self.graph.output(tuple(returned))
        module = InterpretedGraph(self.graph)
        return Program("", module, self.inputs, [value for value, _ in results])

    def _copy(self, node: Node) -> Node:
        copied = self.graph.node_copy(node, lambda arg: self.copied[arg])
        if is_call(node, aten.minimum, aten.maximum) and len(copied.all_input_nodes) == 1:
            # The other one is a number by now, which clamp takes and these do not.
            (x,) = copied.all_input_nodes
            (bound,) = (arg for arg in copied.args if arg is not x)
            copied.target = aten.clamp.default
            copied.args = (x, None, bound) if is_call(node, aten.minimum) else (x, bound)
        if is_call(node, aten.masked_fill) and not isinstance(copied.args[2], Node):
            copied.target = aten.masked_fill.Scalar
        elif is_call(node, aten.where) and isinstance(copied.args[0], Node):
            mask, x, other = arguments(copied)
            if not isinstance(x, Node) and not isinstance(other, Node):
                copied.target = aten.where.Scalar
            elif not isinstance(x, Node):
                copied.target, copied.args = aten.masked_fill.Scalar, (other, mask, x)
            else:
                copied.target = _WHERE[isinstance(x, Node), isinstance(other, Node)]
        return copied

    def _input(self, node: Node, value: Value) -> None:
        self.inputs.append(value)
        copied = self.graph.placeholder(identifier(value.name))
        copied.meta = dict(node.meta)
        self.copied[node] = copied
        if node.meta["val"].dtype == torch.bool:
            copied.meta["val"] = node.meta["val"].to(torch.float32)
            self.copied[node] = call(self.graph, aten.ne.Scalar, copied, 0)

    def _local(self, value: Value) -> Value:
        """A weight or slot under the name that it has in every stage of the family; what is no tensor as it is."""
        if value.role not in ("weight", "state"):
            return value
        name = value.name
        if self.prefix:
            # Tables bear numbers that count through all layers.
            if value.role == "state" or name in self.parameters:
                name = name.replace(self.prefix, "", 1)
            if name == value.name:
                name = f"shared.{sum(local.startswith('shared.') for local in self.bind)}"
        self.bind[name] = value.name
        dtype = "float32" if value.dtype == "bool" else value.dtype
        return Value(name, value.role, dtype, value.shape)


_WHERE = {
    (True, True): aten.where.self,
    (True, False): aten.where.ScalarOther,
    (False, True): aten.where.ScalarSelf,
    (False, False): aten.where.Scalar,
}
"""Overloads by whether each operand is a tensor: scalar constants are numbers in the code of a stage."""


def _read_before(nodes: list[Node], known: set[Node]) -> list[Node]:
    """Return inputs and token-free calls that ``nodes`` need besides ``known``, by first use."""
    found: dict[Node, None] = {}
    inner = known | set(nodes)

    def visit(node: Node) -> None:
        if node in inner or node in found:
            return
        for arg in node.all_input_nodes:
            visit(arg)
        found[node] = None

    for node in nodes:
        for arg in node.all_input_nodes:
            visit(arg)
    return list(found)


def _identity(program: Program) -> Any:
    """Return a key that is equal for programs with identical calls, inputs and outputs."""
    numbers = {node: number for number, node in enumerate(program.module.graph.nodes)}
    calls = [
        (
            node.op,
            str(node.target) if node.op == "call_function" else "",
            repr(torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: numbers[arg])),
        )
        for node in program.module.graph.nodes
    ]
    return tuple(calls), tuple(program.inputs), tuple(program.outputs)
