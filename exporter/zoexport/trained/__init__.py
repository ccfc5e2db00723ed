"""What a method trains: adapters, chosen weights, the integers of quantized weights, or all weights.

Each kind is a module that registers a :class:`Trained`. A method's settings name theirs (``TrainingSettings.trained``),
and nothing else distinguishes kinds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zoexport.core.config import as_dict
from zoexport.core.features import Feature
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Pass

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from zoexport.core.mask import Mask
    from zoexport.session import Bundle

Slots = Mapping[str, "NDArray[Any]"]


@dataclasses.dataclass(frozen=True)
class Insertion:
    """The passes by which what is trained enters programs of single layers (``methods.split.split_passes``).

    Attributes:
        captured: over the captured program, whose weights have the model's names.
        families: over each family of programs once, before its weights are quantized.
        training: the same, of programs that train alone.
        quantized: the same, after they are.
        int8: names of weights that are int8 whatever the others are (``passes.quantize_stages``).
    """

    captured: tuple[Pass, ...] = ()
    families: tuple[Pass, ...] = ()
    training: tuple[Pass, ...] = ()
    quantized: tuple[Pass, ...] = ()
    int8: tuple[str, ...] = ()


def _nothing_needed(_: TrainingSettings) -> dict[Feature, str]:
    return {}


def _nothing_chosen(_: Any) -> Mask | None:
    return None


def _no_counts(_: Any, __: Any, ___: Mapping[str, Any] | None) -> list[int]:
    return []


def _nothing_beside(_: torch.nn.Module, __: Bundle) -> dict[str, torch.Tensor]:
    return {}


MERGED = "merged"
"""The format that every kind has: the model as the session computes it, with what was trained in its weights."""


DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""torch's names of the types that a whole model can be written in."""


@dataclasses.dataclass(frozen=True)
class Output:
    """What is to be written.

    Attributes:
        kind: one of the ``formats``. path: the folder, or the file. replace: where it exists.
        outtype: the type of numbers, of a format that has several; None: its first.
        dtype: the type of a whole model's weights, one of :data:`DTYPES`; None: the original's.
        model: where the original model is, if not where it was compiled from; of formats of whole models.
    """

    kind: str
    path: Path
    replace: bool = False
    outtype: str | None = None
    dtype: str | None = None
    model: str | None = None


class Write(Protocol):
    """Writes what was trained."""

    def __call__(self, output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
        """Write it.

        Args:
            output: of a kind that is not :data:`MERGED`. slots: as trained. initial: as the bundle has them.
            bundle: whose they are.
        """


@dataclasses.dataclass(frozen=True)
class Trained:
    """A kind of training. Its functions import passes, files and torch where they use them.

    Attributes:
        words: what is trained, for messages.
        formats: in which it leaves a state, the default first. readable: those that a state can begin with.
        insertion: settings and the modules that these name -> how it enters programs.
        write: see :class:`Write`.
        merge: transformers' model with the bundle's frozen weights, the slots and the bundle: puts what was trained
            into its weights.
        read: format, folder, the bundle's slots and the bundle -> the slots that the folder has.
        needs: what it asks of a target, and the setting that asks.
        mask: settings -> the chosen elements, read before the model is; None where none are chosen. It raises
            ConfigError where the settings name no mask, or a file that is none.
        counts: settings, transformers' model and places by parameter (None where only sizes are asked for) -> sizes
            that programs have beside those of weights and settings.
        for_reference: transformers' model, which becomes the frozen one, and the bundle -> what a reference is given
            beside the slots.
    """

    words: str
    formats: tuple[str, ...]
    readable: tuple[str, ...]
    insertion: Callable[[Any, list[str]], Insertion]
    write: Write
    merge: Callable[[torch.nn.Module, Slots, Bundle], None]
    read: Callable[[str, Path, Slots, Bundle], Slots]
    needs: Callable[[TrainingSettings], dict[Feature, str]] = _nothing_needed
    mask: Callable[[Any], Mask | None] = _nothing_chosen
    counts: Callable[[Any, Any, Mapping[str, Any] | None], list[int]] = _no_counts
    for_reference: Callable[[torch.nn.Module, Bundle], dict[str, torch.Tensor]] = _nothing_beside


kinds: Registry[Trained] = Registry("kind of training", __name__)


def kind_of(config: TrainingSettings) -> Trained:
    """What a method with these settings trains."""
    return kinds.get(config.trained)


def sizes_of(config: TrainingSettings, model: Any, chosen: Mapping[str, Any] | None) -> list[int]:
    """Numbers that are sizes in a captured model whatever the length of its rows; ``chosen`` is of a training graph."""
    lengths = ("max_length", "generate.context")
    settings = as_dict(config).items()
    found = [value for key, value in settings if isinstance(value, int) and key not in lengths]
    found += [size for parameter in model.parameters() for size in parameter.shape]
    return found + list(kind_of(config).counts(config, model, chosen))


def needs_of(config: TrainingSettings) -> dict[Feature, str]:
    """What programs with these settings ask of a target, and the setting that asks."""
    return {**config.needs, **kind_of(config).needs(config)}
