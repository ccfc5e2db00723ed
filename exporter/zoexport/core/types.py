"""The central types: values, programs, state slots, the training graph, methods and targets."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zoexport.core.config import as_dict, with_values

if TYPE_CHECKING:
    import torch

    from zoexport.core.activation_grids import Format
    from zoexport.core.features import Feature
    from zoexport.core.interpreted import InterpretedGraph
    from zoexport.core.settings import TrainingSettings
    from zoexport.core.step_plan import StepPlan


@dataclasses.dataclass(frozen=True)
class Dim:
    """A dimension whose size is known only when a program runs."""

    name: str
    min: int
    max: int


@dataclasses.dataclass(frozen=True)
class Value:
    """An input or output of a program.

    ``role`` is one of the roles of docs/bundle.md, or ``weight`` for a frozen tensor that the target
    stores with the program. ``dtype`` is a torch dtype's name ("float32").
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int | Dim, ...]

    def sizes(self) -> tuple[int, ...]:
        """The shape, at the most of what is known only when a program runs."""
        return tuple(size.max if isinstance(size, Dim) else size for size in self.shape)

    def as_dict(self) -> dict[str, Any]:
        """The value as the manifest states it."""
        return {
            "name": self.name,
            "role": self.role,
            "dtype": self.dtype,
            "shape": [
                dataclasses.asdict(size) if isinstance(size, Dim) else size for size in self.shape
            ],
        }


@dataclasses.dataclass
class Program:
    """One graph with named inputs and outputs.

    ``module`` takes every input as a placeholder, in the order of ``inputs`` (weights too), and returns a
    tuple in the order of ``outputs``. ``family`` is shared by programs that differ in ``length`` alone, the tokens of a
    row.
    """

    name: str
    module: InterpretedGraph
    inputs: list[Value]
    outputs: list[Value]
    family: str = ""
    length: int | None = None

    @property
    def called(self) -> str:
        """The name by which stages call it."""
        return self.family or self.name

    def weights(self) -> list[Value]:
        """The inputs that the target stores with the program."""
        return [value for value in self.inputs if value.role == "weight"]

    def arguments(self) -> list[Value]:
        """The inputs that a caller supplies, in call order."""
        return [value for value in self.inputs if value.role != "weight"]


_SLOT_BYTES = {"float32": 4, "float16": 2, "int32": 4, "uint8": 1, "int8": 1}
"""Bytes of an element, by dtype."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """A named tensor that outlives a step.

    ``tensor_id`` is its number in the noise specification (docs/rng.md); ``module`` is the path of the
    adapted module in the Hugging Face model.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    tensor_id: int
    module: str

    @property
    def bytes(self) -> int:
        """Bytes of its value."""
        return _SLOT_BYTES[self.dtype] * math.prod(self.shape)

    def as_dict(self) -> dict[str, Any]:
        """The slot as the manifest states it."""
        return {**dataclasses.asdict(self), "shape": list(self.shape)}


@dataclasses.dataclass
class Stage:
    """One part of a model, as an application of programs.

    ``bind`` gives, for each value of the programs with the role ``weight`` or ``state``, the tensor or slot that it
    stands for in this stage, where that is not its own name; its gradient is that slot's. ``backward`` is None where
    there is nothing to train below. ``saving`` goes forward too and gives what ``from_saved`` goes backward from; None
    where there is no such pair.
    """

    name: str
    forward: str
    backward: str | None
    bind: dict[str, str]
    saving: str | None = None
    from_saved: str | None = None

    @property
    def families(self) -> list[str]:
        """Of the programs that it calls."""
        found = (self.forward, self.backward, self.saving, self.from_saved)
        return [family for family in found if family is not None]

    def as_dict(self) -> dict[str, Any]:
        """The stage as the manifest states it."""
        stated = dataclasses.asdict(self)
        if self.saving is None:
            del stated["saving"], stated["from_saved"]
        return stated


class RowReader(Protocol):
    """Where a model's parameters come from."""

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Rows ``begin`` to ``end`` of a parameter, float32."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was found out about a model before it is compiled; nothing where nothing asks for it, or only sizes count.

    Attributes:
        activations: by path of a linear layer, how its input is rounded.
        directions: by path of a linear layer, the first values of its adapter's first matrix (in, rank).
        gains: by path of a linear layer, how many times smaller rounding errors are on rotated inputs
            (``calibration.rotation_gains``).
        calibration: int64 (n, max_length) tokens on which a target that quantizes activations beforehand calibrates.
    """

    activations: Mapping[str, Format] | None = None
    directions: Mapping[str, torch.Tensor] | None = None
    gains: Mapping[str, float] | None = None
    calibration: torch.Tensor | None = None


@dataclasses.dataclass
class TrainingGraph:
    """What the passes rewrite and a target lowers: a :class:`ModelGraph` or a :class:`LayerGraph`.

    Attributes:
        programs: the programs by name.
        weights: the frozen tensors by name.
        slots: the state, and
        initial: its first values by slot name.
        max_length: tokens of the longest row. length: tokens of a row as the programs are captured (``ir.lengths``).
        any_length: whether sizes that are multiples of ``length`` follow the sequence, and no others do.
        lengths: the tokens of a row for which there are programs, ascending, once these are decided.
        pad_token: of a masked language model, whose layers see padding and must be kept from it; None of a causal one.
        rows: sequences in one call. copies: perturbed copies in one call of ``train``.
        rotated: weights that are stored rotated (``core.hadamard``), by name.
        parameters: the names of those ``weights`` that are the model's own and not tables made from its configuration.
        quantized: the weights that stages read as codes and scales, with their group size (0 for int8). These and
            ``parameters`` may lack their values, which ``ir.frozen`` reads when they are written.
        rounded: by parameter of a linear layer, the weight that holds the format of its input.
        grid: where integers are trained, what the session needs for their perturbations: the slot of the ``table``,
            ``eps`` and the ``estimator`` (docs/integers.md).
        step: how the session probes the loss; None where it computes gradients.
        source: where the values of ``parameters`` are read from, for who needs them.
        chosen: by parameter, the elements that are trained while the others are frozen: int64 (k), ascending, ``row *
            columns + column``. Frozen weights have zeros there.
        measured: what passes read beside.
        provenance: the names of the passes applied, in order.
    """

    programs: dict[str, Program]
    weights: dict[str, torch.Tensor]
    slots: list[Slot]
    initial: dict[str, torch.Tensor]
    max_length: int
    length: int
    rows: int
    pad_token: int | None = None
    any_length: bool = False
    lengths: list[int] = dataclasses.field(default_factory=list)
    copies: int = 1
    max_labels: int = 0
    packing: str = "fp32"
    rotated: list[str] = dataclasses.field(default_factory=list)
    parameters: set[str] = dataclasses.field(default_factory=set)
    quantized: dict[str, int] = dataclasses.field(default_factory=dict)
    rounded: dict[str, str] = dataclasses.field(default_factory=dict)
    grid: dict[str, Any] | None = None
    step: StepPlan | None = None
    source: RowReader | None = None
    chosen: dict[str, torch.Tensor] | None = None
    measured: Measured = Measured()
    provenance: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ModelGraph(TrainingGraph):
    """A model as programs of the whole of it, which have the weights inside and perturb by themselves."""

    def in_stages(self, stages: list[Stage]) -> LayerGraph:
        """The same with programs that ``stages`` apply."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return LayerGraph(**same, stages=stages)


@dataclasses.dataclass
class LayerGraph(TrainingGraph):
    """A model as stages, each an application of programs to weights and slots of its own.

    Attributes:
        stages: in forward order, the output head last.
        label_rows: the label entries in one call of the output head.
    """

    stages: list[Stage] = dataclasses.field(default_factory=list)
    label_rows: int = 0

    def stages_of(self, program: Program) -> list[Stage]:
        """The stages that run a program, forward or backward."""
        return [stage for stage in self.stages if program.called in stage.families]


@dataclasses.dataclass(frozen=True)
class Pass:
    """One rewrite of a training graph, with the reason for its place in the order.

    ``reads_values``: it needs the weights' values, and leaves what the programs compute as large as it was; where only
    sizes are asked for, it can be left out. ``wants``: a feature without which a target gets programs as they were.
    """

    name: str
    apply: Callable[[Any], TrainingGraph]
    because: str
    reads_values: bool = False
    wants: Feature | None = None


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why a method's graph cannot be lowered to a target, found before any heavy work."""

    where: str
    reason: str
    fix: str


Pack = Callable[["torch.Tensor", "torch.Tensor"], "dict[str, torch.Tensor]"]


@dataclasses.dataclass(frozen=True)
class Fallback:
    """Programs of another engine that take and give what a bundle's own do: one file, with the same methods."""

    engine: str
    file: str


@dataclasses.dataclass(frozen=True)
class Lowered:
    """What a target made of a training graph, which stays as it was.

    Attributes:
        graph: as the bundle states it: a target may have stages, lengths and weights of its own.
        programs: manifest entries (name, file, method, inputs, outputs).
        required_ops: operators that the device's runtime must have.
        delegates: for each program, what each delegate holds; programs without delegates may be left out.
        fallback_ops: for each program, the operators left outside delegates with their counts; programs without such
            operators may be left out.
        fallback_reasons: for each program, why an operator is outside, where the target can say.
        products_outside: for each program, the matrix products outside delegates; empty where the target has kernels of
            its own for them.
        backends: ExecuTorch's backends that the delegates call.
        packing: how the target stores the weights, where it does not keep the graph's packing.
        notes: what a user must know of these programs, one sentence each.
        minimum_os: the least version, by system, on which the programs run: {"ios": "18.0"}.
        tools: packages, beside those of every target, whose versions the programs depend on.
        pack: codes and scales of a quantized weight -> its parts as the programs read them; None: codes and scales.
        fallback: for where the engine has no device.
    """

    engine: str
    graph: TrainingGraph
    programs: list[dict[str, Any]]
    required_ops: list[str] = dataclasses.field(default_factory=list)
    delegates: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    fallback_ops: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    fallback_reasons: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    products_outside: dict[str, dict[str, int]] = dataclasses.field(default_factory=dict)
    backends: list[str] = dataclasses.field(default_factory=list)
    packing: str | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    minimum_os: dict[str, str] = dataclasses.field(default_factory=dict)
    tools: tuple[str, ...] = ()
    pack: Pack | None = None
    fallback: Fallback | None = None


@dataclasses.dataclass(frozen=True)
class Footprint:
    """What one run of a program takes on a target.

    Attributes:
        planned: bytes of the memory that is planned for the tensors within it.
        scratch: bytes that its kernels take beside, in each thread.
        moved: bytes of weights and tensors that it reads and writes.
        copies_weights: whether the target copies a whole program's weights, beside what is planned.
        windows: bytes of each place on a device that programs share for their weights, of which this one fills so many.
        skips_zero_rows: whether its products leave out the rows of zeros that fill up a call.
    """

    planned: int
    scratch: int
    moved: int
    copies_weights: bool = False
    windows: tuple[int, ...] = ()
    skips_zero_rows: bool = False


@dataclasses.dataclass(frozen=True)
class LoweringMemory:
    """What a target's compiler takes (``tools.compiling`` says how that was measured).

    Attributes:
        base: bytes of itself. node: bytes of each node of the programs, of those of every length.
        packed: by the setting ``weights``, bytes that whole programs take for each weight, beside four of the model's
            own.
    """

    base: int
    node: int
    packed: Mapping[str, float] = dataclasses.field(default_factory=dict)


Progress = Callable[[str, "float | None"], None]


def silent(*_: object) -> None:
    """A :data:`Progress`, or another callback, where nobody watches."""


class Notice(str):
    """A sentence that a :data:`Progress` gets once, among the names of phases; hosts keep it in view."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train. Found by the registry in ``methods/<name>.py``.

    Attributes:
        name: the name in ``--method``.
        summary: one line for ``zoexport methods``.
        config: the dataclass of the settings.
        passes: settings and the modules that these name -> the rewrites that turn the captured ``forward`` program into
            the method's programs, in order.
        reference_class: "module:class" of the method in plain PyTorch, which is imported where it is used, as training
            looks a method's settings up without torch.
        sooner: a sentence on what learns the same in fewer operations, for ``plan``; empty where nothing was measured.
    """

    name: str
    summary: str
    config: type
    passes: Callable[[Any, list[str]], list[Pass]]
    reference_class: str
    sooner: str = ""

    def reference(self, model: torch.nn.Module, config: Any, slots: Mapping[str, Any]) -> Any:
        """The method in plain PyTorch on a model, from the first values of its slots."""
        module, _, name = self.reference_class.partition(":")
        return getattr(importlib.import_module(module), name)(model, config, slots)


@dataclasses.dataclass(frozen=True)
class InnerValue:
    """A result within a program, as PyTorch computes it (``reference``) and as the device does (``computed``)."""

    name: str
    operator: str
    reference: torch.Tensor
    computed: torch.Tensor


_LABELS_PER_SEQUENCE = 8
"""Labels for which a call has room by default: completions of a few tokens fit, and logits stay some tens of MB."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Base class of targets (kinds of devices). Subclasses implement ``lower`` and ``footprint``.

    The registry finds their instances in ``targets/<folder>/target.py``.

    Attributes:
        name: the name in ``--target``.
        summary: one line for ``zoexport targets``.
        has: features that its programs support.
        takes: by setting, its legal values; empty if the target offers no choice. Other settings take all their values.
        preferred: values of settings that the user leaves out. Settings that a method lacks are ignored.
        fixed_labels: whether the number of labels in a call of a whole program is fixed when it is compiled.
        engine: engine that runs the programs on the device.
        package: Python package that lowers the programs; unless it is executorch, the extra ``name`` installs it.
        notice: sentence shown before compiling, such as a license; may be empty.
        generating_lengths: tokens in one call of the programs that generate text, ascending from 1; empty if the target
            has none.
        shows_inner_values: whether the target implements ``inner_values``.
        lowering_memory: memory that compiling takes; None if it was not measured.
    """

    name: str
    summary: str
    has: frozenset[Feature]
    takes: Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {"soc": (), "activations": ("fp32",), "compute": ("fp32",)}
    )
    preferred: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed_labels: bool = False
    engine: str = "executorch"
    package: str = "executorch"
    notice: str = ""
    generating_lengths: tuple[int, ...] = ()
    shows_inner_values: bool = False
    lowering_memory: LoweringMemory | None = None

    def check_available(self) -> list[Problem]:
        """Return what is missing on this machine to compile for the target."""
        if importlib.util.find_spec(self.package) is not None:
            return []
        fix = f"pip install 'zoexport[{self.name}]'."
        if self.package == "executorch":
            fix = "Install zoexport again."  # which depends on it without an extra
        reason = f"the package {self.package} is not installed"
        return [Problem(f"target {self.name}", reason, fix)]

    def defaults(self, config: TrainingSettings) -> TrainingSettings:
        """Return ``config`` with values for the settings that the user left out."""
        from zoexport.core.features import Feature  # which imports this module

        known = {
            "activations": "fp32",
            "compute": "fp32",
            "activation_cache_mb": 0,
            "granularity": "model" if Feature.WHOLE in self.has else "layer",
        }
        known |= self.preferred
        if self.fixed_labels:
            known["labels"] = config.batch_size * min(config.max_length, _LABELS_PER_SEQUENCE)
        settings = as_dict(config)
        return with_values(
            config, {key: value for key, value in known.items() if settings.get(key, "") is None}
        )

    def programs_config(self, config: TrainingSettings) -> TrainingSettings:
        """Return ``config`` for the method's passes, which differs if ``lower`` does a part of their work."""
        return config

    def supports(self, config: TrainingSettings) -> list[Problem]:
        """Return why these settings cannot be lowered, beyond ``has`` and ``takes``, before the model is loaded."""
        return []

    def lower(
        self, graph: TrainingGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write the programs into ``folder``."""
        raise NotImplementedError

    def lower_generating(
        self, graph: LayerGraph, config: TrainingSettings, folder: Path, progress: Progress
    ) -> Lowered:
        """Write the programs that generate text into ``folder``, next to the programs that train.

        The stages of ``graph`` bind the inputs from the weights file and the state, as in the bundle.

        Args:
            graph: layers that read caches (``passes.cache_attention``), over weights of the bundle.
        """
        raise NotImplementedError

    def footprints(
        self, graph: TrainingGraph, config: TrainingSettings, progress: Progress
    ) -> dict[str, Footprint]:
        """Return the footprint of each program once lowered; weights need no values, sizes must be numbers."""
        found = {}
        for number, (name, program) in enumerate(graph.programs.items()):
            progress("planning programs", number / len(graph.programs))
            found[name] = self.footprint(graph, program)
        return found

    def footprint(self, graph: TrainingGraph, program: Program) -> Footprint:
        """Return the footprint of one program of ``graph``, for targets whose programs share no memory."""
        raise NotImplementedError

    def inner_values(
        self, graph: TrainingGraph, config: TrainingSettings, program: str
    ) -> list[InnerValue]:
        """Return every result of a whole program in the order of computation, then its outputs."""
        raise NotImplementedError
