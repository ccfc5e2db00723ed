"""What a target and a method are, and what a target makes of a graph.

A method's settings say what its programs ask of a target (``trained.needs_of``), and a target what it has
(``Target.has``, ``Target.takes``). What is needed and not there is a :class:`~zoexport.core.errors.Problem` before
anything is loaded: no target names a method, and nobody writes down where a new method cannot run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.config import as_dict, with_values
from zoexport.core.errors import Problem
from zoexport.core.features import Feature
from zoexport.core.graph import LayerGraph, Pass, Program, TrainingGraph
from zoexport.core.progress import Progress

if TYPE_CHECKING:
    import torch

    from zoexport.core.settings import TrainingSettings

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
        from zoexport.core.features import Feature

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


def unmet(
    config: TrainingSettings,
    needs: Mapping[Feature, str],
    target: Target,
    others: Iterable[Target],
) -> list[Problem]:
    """Why a target cannot run the programs of ``config``.

    Args:
        config: a method's settings, the target's defaults filled in.
        needs: of these settings and of what they train (``trained.needs_of``).
        others: targets to advise where this one lacks a feature.
    """
    problems = [_refused(key, value, target) for key, value in _untaken(config, target)]
    for feature, where in missing(needs, target).items():
        having = sorted({other.name for other in others if feature in other.has})
        elsewhere = f"Compile for {', '.join(having)}, or choose" if having else "Choose"
        reason = f"target {target.name} has no {feature.value}"
        problems.append(Problem(where, reason, f"{elsewhere} another method or setting."))
    return problems


def missing(needs: Mapping[Feature, str], target: Target) -> dict[Feature, str]:
    """Those of ``needs`` that ``target`` does not have, and the setting that asks for each."""
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
