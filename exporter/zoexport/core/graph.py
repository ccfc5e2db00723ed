"""Training graph: the programs, frozen weights and state tensors that passes rewrite and targets lower."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from zoexport.core.activation_grids import Format
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
    """Input or output of a program.

    Attributes:
        role: one of the roles in docs/formats.md; ``weight`` is a frozen tensor that the target stores.
        dtype: name of a torch dtype, such as "float32".
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int | Dim, ...]

    def sizes(self) -> tuple[int, ...]:
        """Return the shape, with the maximum of each dynamic dimension."""
        return tuple(size.max if isinstance(size, Dim) else size for size in self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Return the value's entry in the manifest."""
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
    """Graph with named inputs and outputs.

    Attributes:
        module: takes all inputs, including weights, in the order of ``inputs``; returns a tuple in the
            order of ``outputs``.
        family: name shared by programs that differ only in ``length``.
        length: tokens per sequence; None if the program has no sequence dimension or any length.
    """

    name: str
    module: InterpretedGraph
    inputs: list[Value]
    outputs: list[Value]
    family: str = ""
    length: int | None = None

    @property
    def called(self) -> str:
        """Name that stages use for this program."""
        return self.family or self.name

    def weights(self) -> list[Value]:
        """Return the inputs that the target stores with the program."""
        return [value for value in self.inputs if value.role == "weight"]

    def arguments(self) -> list[Value]:
        """Return the inputs that the caller passes, in call order."""
        return [value for value in self.inputs if value.role != "weight"]


_SLOT_BYTES = {"float32": 4, "float16": 2, "int32": 4, "uint8": 1, "int8": 1}
"""Bytes per element."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """State tensor: a named tensor that persists between steps.

    Attributes:
        tensor_id: number of the tensor in the noise specification (docs/noise.md).
        module: path of the adapted module in the Hugging Face model.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    tensor_id: int
    module: str

    @property
    def bytes(self) -> int:
        """Size of the tensor in bytes."""
        return _SLOT_BYTES[self.dtype] * math.prod(self.shape)

    def as_dict(self) -> dict[str, Any]:
        """Return the tensor's entry in the manifest."""
        return {**dataclasses.asdict(self), "shape": list(self.shape)}


@dataclasses.dataclass
class Stage:
    """Part of a model: programs and the tensors that they use in this part.

    Attributes:
        forward: family of the forward programs.
        backward: family of the backward programs; None if neither this stage nor an earlier stage trains.
        bind: tensor for each input with the role ``weight`` or ``state``, by the input's name.
        saving: family of forward programs that also return activations for ``from_saved``; None if absent.
        from_saved: family of backward programs that take these activations; None if absent.
    """

    name: str
    forward: str
    backward: str | None
    bind: dict[str, str]
    saving: str | None = None
    from_saved: str | None = None

    @property
    def families(self) -> list[str]:
        """Families of all programs of this stage."""
        found = (self.forward, self.backward, self.saving, self.from_saved)
        return [family for family in found if family is not None]

    def as_dict(self) -> dict[str, Any]:
        """Return the stage's entry in the manifest."""
        stated = dataclasses.asdict(self)
        if self.saving is None:
            del stated["saving"], stated["from_saved"]
        return stated


class RowReader(Protocol):
    """Source of a model's parameters."""

    def read_rows(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Return rows ``begin`` to ``end`` (exclusive) of a parameter, float32."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Results of measurements on the model before compilation; None if the settings need none.

    The keys of the mappings are paths of linear layers.

    Attributes:
        activations: quantization format of each layer's input.
        directions: initial value of the adapter's first matrix, shape (in, rank).
        gains: reduction of rounding errors by rotating the input (``calibration.rotation_gains``).
        calibration: int64 tokens, shape (n, max_length), for targets that calibrate activations.
    """

    activations: Mapping[str, Format] | None = None
    directions: Mapping[str, torch.Tensor] | None = None
    gains: Mapping[str, float] | None = None
    calibration: torch.Tensor | None = None


@dataclasses.dataclass
class TrainingGraph:
    """Base class of :class:`ModelGraph` and :class:`LayerGraph`.

    Attributes:
        programs: programs by name.
        weights: frozen tensors by name.
        slots: state tensors.
        initial: initial values of the state tensors by name.
        max_length: tokens of the longest sequence.
        length: tokens per sequence in the captured programs (``ir.lengths``).
        any_length: whether exactly the sizes that are multiples of ``length`` depend on the sequence length.
        lengths: sequence lengths that have programs, ascending; empty until they are chosen.
        pad_token: padding token of a masked language model; None for a causal model.
        rows: sequences per call.
        copies: perturbations per call of ``train``.
        rotated: names of the weights that are stored rotated (``core.hadamard``).
        parameters: names of the ``weights`` that are parameters of the model; the others are computed tables.
        unquantized: names of the parameters that keep float32 (``models.quantizable``).
        quantized: group size, and whether scales are in steps (``core.int4.quantize_int4``), of each quantized weight
            of a layer; size 0 means int8. The values of these weights and of ``parameters`` may be missing until
            ``ir.frozen`` writes them.
        rounded: weight that contains the input's quantization format, by name of the linear layer's parameter.
        grid: parameters of the perturbation of trained integers (docs/noise.md); None if none are trained.
        step: perturbations of one step; None if the session computes gradients.
        source: reader of the model's parameters.
        chosen: indices of the trained elements of each parameter, int64 (k), ascending, ``row * columns + column``;
            these elements are zero in the frozen weights. None if no element is trained alone.
        measured: results of measurements that passes read.
        provenance: names of the applied passes, in order.
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
    unquantized: set[str] = dataclasses.field(default_factory=set)
    quantized: dict[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)
    rounded: dict[str, str] = dataclasses.field(default_factory=dict)
    grid: dict[str, Any] | None = None
    step: StepPlan | None = None
    source: RowReader | None = None
    chosen: dict[str, torch.Tensor] | None = None
    measured: Measured = Measured()
    provenance: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class ModelGraph(TrainingGraph):
    """Graph whose programs compute the whole model, including perturbations and updates."""

    def in_stages(self, stages: list[Stage]) -> LayerGraph:
        """Return this graph with its programs divided into stages."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return LayerGraph(**same, stages=stages)


@dataclasses.dataclass
class LayerGraph(TrainingGraph):
    """Graph whose programs compute one layer each; identical layers share a program.

    Attributes:
        stages: stages in forward order; the output head is last.
        label_rows: label positions per call of the output head.
    """

    stages: list[Stage] = dataclasses.field(default_factory=list)
    label_rows: int = 0

    def stages_of(self, program: Program) -> list[Stage]:
        """Return the stages that run a program, forward or backward."""
        return [stage for stage in self.stages if program.called in stage.families]
