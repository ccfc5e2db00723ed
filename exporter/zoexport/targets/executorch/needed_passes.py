"""The passes that ExecuTorch's lowering runs, without those that have nothing to find.

ExecuTorch 1.5 decomposes every program, and runs nine passes over it and 17 over each delegate. Most of that retraces
the whole graph: for a model of 30 layers it takes longer than everything else that compiling does. What leaves the
normal form has little left to decompose, and of a tiny program decomposing is most of the time, as torch goes through
all operators that it knows.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Container, Iterator, Sequence, Set
from typing import Any

import torch
from torch._export.utils import _is_preservable_cia_op
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Node
from torch.utils import _pytree as pytree

from zoexport.core.replaced import replaced
from zoexport.ir.graphs import aten, is_call
from zoexport.targets.executorch import in_place

_VISION = ("convolution", "conv1d", "conv2d", "max_pool", "batch_norm", "prelu", "upsample", "pad")
_PROMOTING = (aten.add, aten.mul, aten.sub, aten.div, aten.minimum)
_XNNPACK_CONCATENATES = 5
_XNNPACK_PASSES = (
    "XNNPACKRemoveCloneOpsTransform",
    "ConvertToLinearPass",
    "ConstPropPass",
    "FuseActivationPass",
    "DecomposeConcatenate",
    "RemoveRedundantCopyPass",
)
"""Those that a language model can need, in XNNPACK's order."""
_IN_PLACE: dict[str, Callable[[Any], None]] = {
    "ReplaceViewOpsWithViewCopyOpsPass": in_place.copy_views,
    "ScalarToTensorPass": in_place.scalars_to_tensors,
    "OpReplacePass": in_place.to_edge_operators,
}
_SORTED_INPUTS = ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants")
_INPUT = operator.attrgetter("arg.name")
_TRACED_AWAY = (aten.detach, aten.alias, aten.lift_fresh_copy, aten.lift_fresh)


@contextlib.contextmanager
def needed_passes_only(programs: Sequence[torch.export.ExportedProgram]) -> Iterator[None]:
    """While this is open, lowering leaves out passes that give nothing to do on ``programs``.

    If an operator of a kind that the omitted passes treat is found, all passes run. Operators are rewritten in place,
    so nodes may have other names than tracing gives them.
    """
    from executorch.backends.xnnpack import xnnpack_preprocess
    from executorch.exir.passes import spec_prop_pass
    from executorch.exir.program import _program

    nodes = [node for program in programs for node in program.graph_module.graph.nodes]
    manager, to_edge = xnnpack_preprocess.XNNPACKPassManager, _program._get_aten_to_edge_passes
    # One of each operator, but for those whose passes look at what an operator is given.
    kinds = [*{node.target: node for node in nodes if not is_call(node, aten.cat)}.values()]
    kinds += [node for node in nodes if is_call(node, aten.cat)]
    vision = any(kind in str(node.target) for node in kinds for kind in _VISION)
    of_all = _passes_of_all_delegates(kinds)

    def of_delegates(exported: Any, passes: Any = None) -> Any:
        inside = list(exported.graph_module.graph.nodes)
        return manager(exported, passes=passes or _delegate_passes(of_all, inside))

    def of_programs(config: Any) -> tuple[list[Any], list[Any]]:
        before, after = to_edge(config)
        omitted = _idle_edge_passes(nodes)
        kept = [step for step in before if pass_name(step) not in omitted]
        return [_in_place(step) if pass_name(step) in _IN_PLACE else step for step in kept], after

    known: dict[Any, Any] = {}
    default = _program._default_decomposition_table

    def decompositions() -> dict[Any, Any]:
        # ExecuTorch asks for each program, and torch then goes through all operators that there are.
        if not known:
            known.update(default().materialize())
        return dict(known)

    views, operators = _program.ReplaceViewOpsWithViewCopyOpsPass, _program.OpReplacePass
    retrace = spec_prop_pass.ExportPass
    changes: list[tuple[Any, str, Any]] = []
    if not vision:
        changes += [
            (xnnpack_preprocess, "XNNPACKPassManager", of_delegates),
            (_program, "_get_aten_to_edge_passes", of_programs),
            (_program, "_default_decomposition_table", decompositions),
            (_program, "ReplaceViewOpsWithViewCopyOpsPass", lambda: _in_place(views())),
            (_program, "OpReplacePass", lambda: _in_place(operators())),
            (spec_prop_pass, "ExportPass", lambda: functools.partial(_as_recorded, retrace())),
        ]
    with (
        replaced(*changes),
        needed_decompositions_only(programs),
        delegates_as_recorded(),
        _nothing_described(),
        _inputs_looked_up_once(),
        _dimensions_ordered_once(),
    ):
        yield


def _as_recorded(retrace: Any, module: torch.fx.GraphModule) -> Any:
    """A module that a pass traces again to record what each call gives, where rewrites in place have recorded that."""
    from torch.fx.passes.infra.pass_base import PassResult

    if not in_place.is_plain(module) or not all(map(in_place.is_fixed, module.graph.nodes)):
        return retrace(module)
    return PassResult(torch.fx.GraphModule(module, module.graph), modified=True)


@contextlib.contextmanager
def _nothing_described() -> Iterator[None]:
    """While this is open, no graph is written out for a log that is off, and a class's fields are looked up once."""
    from executorch.exir._serialize import _dataclass

    hints = functools.cache(_dataclass.get_type_hints)
    with replaced(
        (torch.fx.GraphModule, "__str__", object.__repr__), (_dataclass, "get_type_hints", hints)
    ):
        yield


@contextlib.contextmanager
def _inputs_looked_up_once() -> Iterator[None]:
    """While this is open, a signature's inputs are sorted again only after a change: ExecuTorch asks for each node.

    To see that nothing has changed takes a look at all inputs, too. So it is left out within what only reads.
    """
    from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
    from executorch.exir.passes.spec_prop_pass import SpecPropPass
    from executorch.exir.program import _program

    known: dict[tuple[int, str], Any] = {}
    unchanged: set[tuple[int, str]] = set()
    reading = 0

    def of(name: str) -> property:
        original = vars(ExportGraphSignature)[name]

        def found(signature: Any) -> Any:
            key = id(signature), name
            if key not in unchanged:
                specs = signature.input_specs
                of_now = [*specs], [*map(_INPUT, specs)]
                if known.get(key, (None,))[0] != of_now:
                    known[key] = of_now, original.fget(signature)
                if reading:
                    unchanged.add(key)
            return known[key][1]

        return property(found)

    def that_only_reads(called: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(called)
        def read(*args: Any, **kwargs: Any) -> Any:
            nonlocal reading
            reading += 1
            try:
                return called(*args, **kwargs)
            finally:
                reading -= 1
                unchanged.clear()

        return read

    readers: tuple[tuple[Any, str], ...] = (
        (SpecPropPass, "update_placeholder_tensor_specs"),
        (MemoryPlanningPass, "run"),
        (_program, "emit_program"),
    )
    with replaced(
        *((ExportGraphSignature, name, of(name)) for name in _SORTED_INPUTS),
        *((owner, name, that_only_reads(getattr(owner, name))) for owner, name in readers),
    ):
        yield


@contextlib.contextmanager
def _dimensions_ordered_once() -> Iterator[None]:
    """While this is open, the order of dimensions is found once for strides that are numbers.

    ExecuTorch makes a class to compare strides by, for each tensor.
    """
    from executorch.exir import tensor

    original = tensor.dim_order_from_stride
    of_numbers = functools.cache(original)

    def ordered(stride: Any) -> Any:
        numbers = tuple(stride)
        return of_numbers(numbers) if all(type(one) is int for one in numbers) else original(stride)

    with replaced((tensor, "dim_order_from_stride", ordered)):
        yield


@contextlib.contextmanager
def delegates_as_recorded() -> Iterator[None]:
    """While this is open, a delegate that a pass runs gives tensors like those that its own program records.

    Every pass over a lowered program runs its delegates, to learn what shapes they give: that is most of what making a
    program file takes, and the delegate's program says them. With inputs of other shapes than it records it is run.
    """
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    original = LoweredBackendModule.original_module
    known: list[torch.export.ExportedProgram] = []

    def recorded(module: Any) -> torch.export.ExportedProgram:
        program: torch.export.ExportedProgram = original.fget(module)
        if "module" not in vars(program):
            vars(program)["module"] = functools.partial(_Recorded, program, program.module)
            known.append(program)
        return program

    try:
        with replaced((LoweredBackendModule, "original_module", property(recorded))):
            yield
    finally:
        for program in known:
            del vars(program)["module"]


class _Recorded:
    """A program that is called with tensors of the shapes that it records, or else runs."""

    def __init__(self, program: torch.export.ExportedProgram, run: Callable[[], Any]) -> None:
        self._run = run
        nodes = program.graph.nodes
        taken = set(program.graph_signature.user_inputs)
        self._inputs = [n.meta["val"] for n in nodes if n.op == "placeholder" and n.name in taken]
        (output,) = (node for node in nodes if node.op == "output")
        returned: Any = output.args[0]
        self._outputs: list[Any] = [getattr(node, "meta", {}).get("val") for node in returned]
        self._form = program.call_spec.out_spec

    def __call__(self, *args: Any) -> Any:
        fits = len(args) == len(self._inputs) and all(map(_is_like, args, self._inputs))
        if not fits or not all(isinstance(value, torch.Tensor) for value in self._outputs):
            return self._run()(*args)
        mode = next((arg.fake_mode for arg in args if isinstance(arg, FakeTensor)), None)
        with mode or contextlib.nullcontext():
            made = [
                torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
                for value in self._outputs
            ]
        return pytree.tree_unflatten(made, self._form)


def _is_like(given: Any, recorded: Any) -> bool:
    """Whether a fake tensor has the shape that was recorded, of numbers or of the same symbols."""
    return (
        isinstance(given, FakeTensor)
        and isinstance(recorded, torch.Tensor)
        and given.dtype == recorded.dtype
        and len(given.shape) == len(recorded.shape)
        and all(map(_is_same_size, given.shape, recorded.shape))
    )


def _is_same_size(given: Any, recorded: Any) -> bool:
    if isinstance(given, torch.SymInt) and isinstance(recorded, torch.SymInt):
        a, b = given.node, recorded.node
        return a.shape_env is b.shape_env and bool(a.expr == b.expr)
    return type(given) is type(recorded) is int and given == recorded


@contextlib.contextmanager
def needed_decompositions_only(
    programs: Sequence[torch.export.ExportedProgram], *, renamed: bool = True
) -> Iterator[None]:
    """While this is open, ``run_decompositions`` of ``programs`` gives those back that it would only trace again."""
    for program in programs:
        _decompose_if_needed(program, renamed)
    try:
        yield
    finally:
        for program in programs:
            vars(program).pop("run_decompositions", None)


def _in_place(step: Any) -> Callable[[Any], Any]:
    """One of :data:`_IN_PLACE`, without tracing where the graph has nothing but operators."""
    from torch.fx.passes.infra.pass_base import PassResult

    rewrite = _IN_PLACE[pass_name(step)]

    def rewritten(module: Any) -> Any:
        if not in_place.is_plain(module):
            return step(module)
        rewrite(module)
        return PassResult(module, True)

    rewritten.__name__ = pass_name(step)
    return rewritten


def pass_name(step: Any) -> str:
    """The name of a pass's class; pass managers wrap passes in functions that carry it."""
    return str(getattr(step, "__name__", type(step).__name__))


def _decompose_if_needed(program: torch.export.ExportedProgram, renamed: bool) -> None:
    run = program.run_decompositions

    def decomposed(table: Any) -> torch.export.ExportedProgram:
        if renamed and has_decompositions(program, table):
            in_place.decompose(program, table)
        return run(table) if has_decompositions(program, table) else program

    vars(program)["run_decompositions"] = decomposed


def has_decompositions(program: torch.export.ExportedProgram, table: Container[Any]) -> bool:
    """Whether tracing ``program`` again with the decompositions of ``table`` changes more than names.

    It does where an operator is in the table, writes in place, or is one that only tracing removes; and inside blocks.
    """
    called = {n.target for n in program.graph_module.graph.nodes if n.op == "call_function"}
    operators = {one for one in called if isinstance(one, torch._ops.OpOverload)}
    # A table that is asked about an operator is first filled with all that torch knows, so few are asked about.
    default = _decomposed_by_default()
    return (
        any(getattr(one, "__module__", None) != "_operator" for one in called - operators)
        or any(one._schema.is_mutable for one in operators)
        or any(one.overloadpacket in _TRACED_AWAY for one in operators)
        or any(
            _is_composite(one) and (one in table or not _is_preservable_cia_op(one))
            for one in operators - default
        )
        or any(one in table for one in operators & default)
    )


def _is_composite(target: torch._ops.OpOverload) -> bool:
    """Whether tracing always replaces an operator by those that it is made of, such as reshape by view."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return key in target.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), key
    )


@functools.cache
def _decomposed_by_default() -> frozenset[Any]:
    from executorch.exir.tracer import _default_decomposition_table

    return frozenset(_default_decomposition_table().keys())


def _passes_of_all_delegates(nodes: Sequence[Node]) -> set[str]:
    """Names of XNNPACK's passes that ``nodes`` of all programs call for in every delegate."""
    found = {"XNNPACKRemoveCloneOpsTransform"}
    if any(is_call(node, aten.mm, aten.addmm) for node in nodes):
        found.add("ConvertToLinearPass")
    if any(is_call(node, aten.relu, aten.hardtanh, aten.clamp, aten.relu6) for node in nodes):
        found.add("FuseActivationPass")
    if any(is_call(node, aten.cat) and _parts(node) > _XNNPACK_CONCATENATES for node in nodes):
        found.add("DecomposeConcatenate")
    return found


def _delegate_passes(of_all: Set[str], inside: Sequence[Node]) -> list[Any]:
    """Those of XNNPACK's passes that a delegate can need, in XNNPACK's order; ``inside`` are its own nodes."""
    from executorch.backends.xnnpack import _passes as passes

    found = set(of_all)
    if any(node.op == "call_function" and not node.all_input_nodes for node in inside):
        found.add("ConstPropPass")
    if any("_to_copy" in str(node.target) for node in inside):
        found.add("RemoveRedundantCopyPass")
    return [getattr(passes, name) for name in _XNNPACK_PASSES if name in found]


def _idle_edge_passes(nodes: Sequence[Node]) -> set[str]:
    """Names of the passes to the edge dialect that would change nothing."""
    # What it replaces, another pass has replaced before it, if it is of this namespace.
    idle = set() if any(map(_is_foreign_view, nodes)) else {"ReplaceBrokenOpsWithFunctionalOpsPass"}
    if not any(is_call(node, aten.t) for node in nodes):
        idle.add("NormalizeTransposePass")
    if not any(map(_takes_symbol_for_tensor, nodes)):
        idle.add("SymToTensorPass")
    if not any(is_call(node, *_PROMOTING) and len(_dtypes(node)) > 1 for node in nodes):
        idle.add("RemoveMixedTypeOperators")
    return idle


def _parts(node: Node) -> int:
    parts = node.args[0]
    return len(parts) if isinstance(parts, list | tuple) else 0


def _is_foreign_view(node: Node) -> bool:
    return getattr(node.target, "is_view", False) and not str(node.target).startswith("aten.")


def _takes_symbol_for_tensor(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(
        isinstance(argument.type, torch.TensorType)
        and isinstance(given, Node)
        and not isinstance(given.meta["val"], torch.Tensor)
        for argument, given in zip(schema.arguments, node.args, strict=False)
    )


def _dtypes(node: Node) -> set[torch.dtype]:
    """The dtypes that an operation would have to promote; a number counts as the tensor it becomes."""
    values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in node.args[:2]]
    return {
        value.dtype
        if isinstance(value, torch.Tensor)
        else torch.float32
        if isinstance(value, float)
        else torch.int64
        for value in values
    }
