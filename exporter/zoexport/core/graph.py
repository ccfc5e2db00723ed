"""The graph that passes rewrite and targets lower: programs over named weights, slots of state, and stages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from zoexport.core.activation_grids import Format
    from zoexport.core.features import Feature
    from zoexport.core.interpreted import InterpretedGraph
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
