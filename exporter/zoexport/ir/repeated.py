"""Repeated layers: export traces one of several identical decoder layers.

Tracing takes most of the capture time, and most of a model are copies of one or two layers. During
export the first layer runs between two marks, and each identical layer becomes a single node::

    b = begin(hidden, 0)          # 0: the layer that is traced
    y = linear(b, layers.0.w)
    e = end(y, 0)
    z = repeat(e, 1, 0)           # 1: the layer identical to it
    l = linear(z, head.w)

``write_out`` returns the graph that tracing each layer would return::

    y = linear(hidden, layers.0.w)
    z = linear(y, layers.1.w)
    l = linear(z, head.w)

Layers are identical if classes, attributes, weight shapes and arguments other than the first tensor
are equal, and if their result has the metadata of that tensor. Integers that differ between layers,
such as a layer's index, must not be read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from zoexport.ir.graphs import arguments, is_call, operand

_LIBRARY = torch.library.Library("zoexport_capture", "DEF")
for _name, _schema in (
    ("begin", "(Tensor x, int layer) -> Tensor"),
    ("end", "(Tensor x, int layer) -> Tensor"),
    ("repeat", "(Tensor x, int layer, int like) -> Tensor"),
):
    _LIBRARY.define(_name + _schema)
    _LIBRARY.impl(_name, lambda x, *_: torch.empty_like(x), "CompositeExplicitAutograd")
_marks = torch.ops.zoexport_capture

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_PATHS = "nn_module_stack"


class Unlike(Exception):
    """A layer that stands for others does what only it may do: each must be traced."""


@dataclasses.dataclass
class _Layer:
    """A layer, and how it was called when it was traced.

    Attributes:
        path: its name in what is exported. forward: its own, of its class. alone: whether no other has its weights.
        place: of its tensor among the leaves of ``taken``. form: how these are nested, and how those of ``given``.
    """

    path: str
    module: nn.Module
    forward: Callable[..., Any]
    alone: bool
    place: int = 0
    taken: list[Any] = dataclasses.field(default_factory=list)
    given: list[Any] = dataclasses.field(default_factory=list)
    form: tuple[Any, Any] = (None, None)


@dataclasses.dataclass(frozen=True)
class _Forward:
    """Replacement for a layer's ``forward`` during export."""

    repeated: Repeated
    number: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.repeated.run(self.number, args, kwargs)


class Repeated:
    """The layers of a model that is exported.

    Args:
        model: what torch.export gets, a module.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = Counter(map(id, _tensors(model)))
        self._layers = [
            _Layer(
                path, one, one.forward, all(tensors[id(tensor)] == 1 for tensor in _tensors(one))
            )
            for path, one in ([] if _shares_modules(model) else _stacked(model))
        ]
        self._traced: list[int] = []
        self._numbers = _different_numbers([layer.module for layer in self._layers])
        self._seen: set[str] = set()

    @contextlib.contextmanager
    def traced_once(self) -> Iterator[None]:
        """Trace only the first of several identical layers within this context."""
        watched = self._watched_classes()
        changed = [
            (module, type(module))
            for layer in self._layers
            for module in layer.module.modules()
            if type(module) in watched
        ]
        for module, kind in changed:
            module.__class__ = watched[kind]
        for number, layer in enumerate(self._layers):
            vars(layer.module)["forward"] = _Forward(self, number)
        try:
            yield
        finally:
            for layer in self._layers:
                del vars(layer.module)["forward"]
            for module, kind in changed:
                module.__class__ = kind

    def _watched_classes(self) -> dict[type, type]:
        """By class of modules, one that is like it and notes when a number is read in which layers differ."""
        names: dict[type, dict[str, Any]] = defaultdict(dict)
        for kind, name in self._numbers:
            names[kind][name] = _Watched(name, self._seen)
        own = ("__module__", "__qualname__")
        return {
            kind: type(
                kind.__name__, (kind,), {**watches, **{key: getattr(kind, key) for key in own}}
            )
            for kind, watches in names.items()
        }

    def run(self, number: int, args: Any, kwargs: Any) -> Any:
        """Run a layer's forward pass, or insert the node that stands for it."""
        layer = self._layers[number]
        taken, form = pytree.tree_flatten((args, kwargs))
        tensors = [place for place, leaf in enumerate(taken) if isinstance(leaf, Tensor)]
        if not tensors:
            return layer.forward(*args, **kwargs)
        place = tensors[0]
        for like in self._traced:
            first = self._layers[like]
            if first.form[0] == form and self._alike(first, layer, taken):
                made = _marks.repeat(taken[place], number, like)
                given = [made if isinstance(leaf, Tensor) else leaf for leaf in first.given]
                return pytree.tree_unflatten(given, first.form[1])
        inside = list(taken)
        inside[place] = _marks.begin(taken[place], number)
        args, kwargs = pytree.tree_unflatten(inside, form)
        given, given_form = pytree.tree_flatten(layer.forward(*args, **kwargs))
        ends = [leaf for leaf in given if isinstance(leaf, Tensor)]
        if len(ends) == 1 and _looks(ends[0]) == _looks(taken[place]):
            marked = _marks.end(ends[0], number)
            given = [marked if leaf is ends[0] else leaf for leaf in given]
            layer.place, layer.taken, layer.given = place, taken, given
            layer.form = form, given_form
            self._traced.append(number)
        return pytree.tree_unflatten(given, given_form)

    def _alike(self, first: _Layer, other: _Layer, taken: list[Any]) -> bool:
        place = first.place
        return (
            _looks(first.taken[place]) == _looks(taken[place])
            and all(
                number == place or one is two or (isinstance(one, _PLAIN) and _same(one, two))
                for number, (one, two) in enumerate(zip(first.taken, taken, strict=True))
            )
            and all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in (*first.taken, *first.given))
            and first.alone
            and other.alone
            and _same(first.module, other.module, {name for _, name in self._numbers})
        )

    def write_out(self, graph: Graph, signature: ExportGraphSignature) -> None:
        """Have each layer stand in a graph that was exported meanwhile, and no marks.

        Raises:
            Unlike: nothing is as it should be; export again without :meth:`traced_once`.
        """
        if self._seen:
            raise Unlike
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        weights: dict[Node, str] = {}
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                weights[node] = str(spec.target)
        named = {name: node for node, name in weights.items()}
        bodies: dict[int, _Body] = {}
        for node in list(graph.nodes):
            if is_call(node, _marks.end):
                bodies[arguments(node)[1]] = _Body(node, weights)
            elif is_call(node, _marks.repeat):
                _, number, like = arguments(node)
                paths = self._layers[like].path, self._layers[number].path
                node.replace_all_uses_with(bodies[like].written_before(node, paths, named))
                graph.erase_node(node)
        for node in list(graph.nodes):
            if is_call(node, _marks.begin, _marks.end):
                node.replace_all_uses_with(operand(node))
                graph.erase_node(node)


class _Body:
    """Traced graph of a layer, between its marks.

    Args:
        end: the layer's last mark. weights: placeholders of the graph, with their names.

    Raises:
        Unlike: nodes outside the layer read more than its result, or constants from tracing.
    """

    def __init__(self, end: Node, weights: Mapping[Node, str]) -> None:
        self._weights = weights
        (self._result,) = end.all_input_nodes
        self._calls: list[Node] = []
        node = end.prev
        while not is_call(node, _marks.begin):
            # Numbers are sizes of the tokens, which all layers read.
            if isinstance(node.meta.get("val"), torch.SymInt):
                node = node.prev
                continue
            self._calls.append(node)
            node = node.prev
        self._begin = node
        self._calls.reverse()
        inside = {*self._calls, end}
        for node in self._calls:
            constants = [read for read in node.all_input_nodes if read.op != "call_function"]
            if (
                node.op != "call_function"
                or not inside.issuperset(node.users)
                or any(read not in weights and read.op == "placeholder" for read in constants)
            ):
                raise Unlike

    def written_before(self, node: Node, paths: tuple[str, str], named: Mapping[str, Node]) -> Node:
        """Write the calls before ``node``, which reads what another layer takes, with that one's weights.

        Args:
            paths: of the layer that was traced and of the other. named: placeholders by the name of their weight.

        Returns:
            The call that gives the layer's result.

        Raises:
            Unlike: the other layer has no such weight.
        """
        old, new = (f"{path}." for path in paths)
        copied: dict[Node, Node] = {self._begin: operand(node)}

        def moved(read: Node) -> Node:
            name = self._weights.get(read, "")
            if not name.startswith(old):
                return copied.get(read, read)
            weight = named.get(new + name.removeprefix(old))
            if weight is None:
                raise Unlike
            return weight

        with node.graph.inserting_before(node):
            for call in self._calls:
                copied[call] = made = node.graph.node_copy(call, moved)
                stack = call.meta.get(_PATHS, {})
                made.meta[_PATHS] = {
                    key: (_moved(path, *paths), kind) for key, (path, kind) in stack.items()
                }
        return copied[self._result]


def _moved(path: str, old: str, new: str) -> str:
    within = path == old or path.startswith(f"{old}.")
    return new + path.removeprefix(old) if within else path


def _stacked(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules in the outermost lists of a model, with their names; none with a forward of its own."""
    found: list[tuple[str, nn.Module]] = []
    lists: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not path.startswith(tuple(lists)):
            lists.append(f"{path}.")
            found += [(f"{path}.{name}", one) for name, one in module.named_children()]
    return [(path, one) for path, one in found if "forward" not in vars(one)]


def _shares_modules(model: nn.Module) -> bool:
    """Return whether a module has several paths; torch.export then records paths by attribute access.

    A replaced ``forward`` would lose the layer's own path.
    """
    modules = [id(module) for _, module in model.named_modules(remove_duplicate=False)]
    return len({*modules}) < len(modules)


def _tensors(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of a module, one as often as it has names."""
    of_both = (module.named_parameters, module.named_buffers)
    return [tensor for found in of_both for _, tensor in found(remove_duplicate=False)]


class _Watched:
    """An attribute of a class of modules that notes that it was read."""

    def __init__(self, name: str, seen: set[str]) -> None:
        self._name = name
        self._seen = seen

    def __get__(self, module: nn.Module, kind: type) -> Any:
        self._seen.add(self._name)
        return vars(module)[self._name]

    def __set__(self, module: nn.Module, value: Any) -> None:
        vars(module)[self._name] = value


def _different_numbers(layers: list[nn.Module]) -> set[tuple[type, str]]:
    """The attributes, by class, that are whole numbers and not the same ones in all layers that have them."""
    found: dict[tuple[str, str], list[tuple[type, int]]] = defaultdict(list)
    for layer in layers:
        for path, module in layer.named_modules():
            for name, value in vars(module).items():
                if type(value) is int:
                    found[path, name].append((type(module), value))
    return {
        (kind, name)
        for (_, name), values in found.items()
        if len({value for _, value in values}) > 1
        for kind, _ in values
    }


def _looks(tensor: Tensor) -> tuple[Any, ...]:
    """A tensor's sizes and strides; as text, since to compare a size that is open would bind it."""
    return tensor.dtype, tensor.device, str(tuple(tensor.shape)), str(tensor.stride())


def _same(one: Any, other: Any, numbers: Collection[str] = ()) -> bool:
    """Return whether two values are equal: modules by class and attributes, tensors by metadata.

    Args:
        numbers: integer attributes of modules that may differ.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Module):
        mine, yours = vars(one), vars(other)
        return mine.keys() == yours.keys() and all(
            isinstance(value, _Forward)
            or (name in numbers and type(value) is type(yours[name]) is int)
            or _same(value, yours[name], numbers)
            for name, value in mine.items()
        )
    if isinstance(one, Tensor):
        return _looks(one) == _looks(other) and one.requires_grad == other.requires_grad
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _same(one[key], other[key], numbers) for key in one
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, functools.partial):
        return _same([one.func, one.args, one.keywords], [other.func, other.args, other.keywords])
    return isinstance(one, (*_PLAIN, set)) and bool(one == other)
