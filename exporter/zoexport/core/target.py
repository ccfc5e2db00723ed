"""Targets, methods and the result of lowering.

A method's settings determine the features that its programs need (``trained.needs_of``). A target lists the features
and settings that it supports (``Target.has``, ``Target.takes``). A missing feature is a
:class:`~zoexport.core.errors.Problem` before anything is loaded. Therefore no target names a method.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.config import as_dict, with_values
from zoexport.core.errors import Problem
from zoexport.core.features import Feature
from zoexport.core.graph import LayerGraph, Program, TrainingGraph
from zoexport.core.progress import Progress

if TYPE_CHECKING:
    import torch

    from zoexport.core.settings import TrainingSettings

Pack = Callable[["torch.Tensor", "torch.Tensor"], "dict[str, torch.Tensor]"]


@dataclasses.dataclass(frozen=True)
class Lowered:
    """Result of lowering a training graph.

    Attributes:
        engine: engine that runs the programs.
        graph: graph that describes the bundle; its stages, lengths and weights may differ from the input's.
        programs: manifest entries (name, file, entry point, inputs, outputs).
        required_ops: operators that the runtime on the device must provide.
        delegates: operators in each delegate, by program; may omit programs without delegates.
        fallback_ops: number of calls of each operator outside delegates, by program.
        fallback_reasons: reason why an operator is outside delegates, by program and operator, if known.
        products_outside: matrix products outside delegates, by program; empty if the target has kernels for them.
        backends: ExecuTorch backends that the delegates use.
        packing: storage format of the weights; None for the graph's format.
        notes: sentences that the user should read.
        minimum_os: minimum version of each operating system, such as {"ios": "18.0"}.
        tools: additional packages whose versions the programs depend on.
        pack: converts quantized values and scales to the stored tensors of a weight; None stores both unchanged.
        fallback: the same method for devices that cannot run these programs, over the same state; None if absent.
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
    fallback: Lowered | None = None

    def engines(self) -> Iterator[Lowered]:
        """Yield this and what devices use instead, in the order in which they try."""
        yield self
        if self.fallback is not None:
            yield from self.fallback.engines()

    def before(self, other: Lowered) -> Lowered:
        """Return this with ``other`` as the last fallback."""
        rest = other if self.fallback is None else self.fallback.before(other)
        return dataclasses.replace(self, fallback=rest)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Memory and memory traffic of one run of a program.

    Attributes:
        planned: bytes of planned memory for activations.
        scratch: bytes of scratch memory per thread.
        moved: bytes of weights and activations that the program reads and writes.
        copies_weights: whether the target copies the weights in addition to the planned memory.
        windows: bytes of each device buffer for weights that the program uses; programs share these buffers.
        skips_zero_rows: whether matrix products skip rows of padding.
    """

    planned: int
    scratch: int
    moved: int
    copies_weights: bool = False
    windows: tuple[int, ...] = ()
    skips_zero_rows: bool = False


@dataclasses.dataclass(frozen=True)
class LoweringMemory:
    """Memory that a target's compiler needs; ``tools.compiling`` describes the measurement.

    Attributes:
        base: constant number of bytes.
        node: bytes per graph node, for the programs of all lengths.
        packed: bytes per weight of whole-model programs by the setting ``weights``, in addition to the model's 4 bytes.
    """

    base: int
    node: int
    packed: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Pass:
    """Rewrite of a training graph.

    Attributes:
        because: reason for the position in the order of passes.
        reads_values: whether the pass needs the weights' values and changes no sizes; estimates skip such passes.
        wants: feature of the target that the pass requires; the pass is skipped for other targets.
    """

    name: str
    apply: Callable[[Any], TrainingGraph]
    because: str
    reads_values: bool = False
    wants: Feature | None = None


@dataclasses.dataclass(frozen=True)
class Method:
    """Training method. The registry finds it in ``methods/<name>.py``.

    Attributes:
        name: value of ``--method``.
        summary: line of ``zoexport methods``.
        config: dataclass of the settings.
        passes: returns the passes from the settings and the names of the target modules.
        reference_class: "module:class" of the implementation in PyTorch; imported on first use, as training must not
            import torch.
        sooner: advice of ``plan`` on a method that needs fewer operations; may be empty.
    """

    name: str
    summary: str
    config: type
    passes: Callable[[Any, list[str]], list[Pass]]
    reference_class: str
    sooner: str = ""

    def reference(self, model: torch.nn.Module, config: Any, slots: Mapping[str, Any]) -> Any:
        """Create the implementation in PyTorch.

        Args:
            slots: initial values of the state tensors by name.
        """
        module, _, name = self.reference_class.partition(":")
        return getattr(importlib.import_module(module), name)(model, config, slots)


@dataclasses.dataclass(frozen=True)
class InnerValue:
    """Intermediate result of a program: PyTorch's (``reference``) and the device's (``computed``)."""

    name: str
    operator: str
    reference: torch.Tensor
    computed: torch.Tensor


_LABELS_PER_SEQUENCE = 8
"""Default number of labels per sequence: enough for short completions, and logits need only tens of MB."""


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
        fallback: name of the target for devices that cannot run the engine; empty if there is none, or if ``lower``
            returns its programs.
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
    fallback: str = ""
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
        known = {
            "activations": "fp32",
            "compute": "fp32",
            "activation_cache_mb": 0,
            "scale_steps": False,
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

    def lower_fallback(self, graph: TrainingGraph, folder: Path, progress: Progress) -> Lowered:
        """Write the programs of target ``fallback`` into ``folder``, next to the programs that train."""
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


def unmet(
    config: TrainingSettings,
    needs: Mapping[Feature, str],
    target: Target,
    others: Iterable[Target],
) -> list[Problem]:
    """Return the reasons why a target cannot run the programs of ``config``.

    Args:
        config: settings of a method, including the target's defaults.
        needs: features that the settings need (``trained.needs_of``).
        others: targets that the messages may recommend.
    """
    problems = [_refused(key, value, target) for key, value in _untaken(config, target)]
    for feature, where in missing(needs, target).items():
        having = sorted({other.name for other in others if feature in other.has})
        elsewhere = f"Compile for {', '.join(having)}, or choose" if having else "Choose"
        reason = f"target {target.name} has no {feature.value}"
        problems.append(Problem(where, reason, f"{elsewhere} another method or setting."))
    return problems


def missing(needs: Mapping[Feature, str], target: Target) -> dict[Feature, str]:
    """Return the features in ``needs`` that ``target`` lacks, with the setting that needs each."""
    return {feature: where for feature, where in needs.items() if feature not in target.has}


def _untaken(config: TrainingSettings, target: Target) -> list[tuple[str, Any]]:
    settings = as_dict(config)
    return [
        (key, settings[key])
        for key, values in target.takes.items()
        if key in settings and settings[key] is not None and settings[key] not in values
    ]


def _refused(key: str, value: Any, target: Target) -> Problem:
    values = target.takes[key]
    if not values:
        return Problem(
            f"setting {key}={value}",
            f"target {target.name} has no choice of {key}",
            f"Leave {key} out.",
        )
    return Problem(
        f"setting {key}={value}",
        f"target {target.name} takes {key}={' or '.join(values)}",
        f"Leave {key} out, or choose {key}={' or '.join(values)}.",
    )
