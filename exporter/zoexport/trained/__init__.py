"""Kinds of training: adapters, sparse weights, integers of quantized weights, or all weights.

Each kind is a module that registers a :class:`Trained`. A method's settings select the kind
(``TrainingSettings.trained``); nothing else distinguishes kinds.
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
    """Passes that insert trained weights into per-layer programs (``methods.split.split_passes``).

    Attributes:
        captured: run on the captured program, whose weights have the model's names.
        families: run once on each family of programs, before its weights are quantized.
        training: the same, for training programs only.
        quantized: the same, after quantization.
        int8: names of weights that are always int8 (``passes.quantize_stages``).
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
    """Destination and options of an export.

    Attributes:
        kind: one of the ``formats``. path: folder or file. replace: replace an existing path.
        outtype: data type, for a format that has several; None: its first.
        dtype: dtype of a whole model's weights, one of :data:`DTYPES`; None: the original's.
        model: location of the original model, if it has moved; for formats of whole models.
    """

    kind: str
    path: Path
    replace: bool = False
    outtype: str | None = None
    dtype: str | None = None
    model: str | None = None


class Write(Protocol):
    """Function that writes trained weights."""

    def __call__(self, output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
        """Write the trained weights.

        Args:
            output: kind other than :data:`MERGED`. slots: trained values. initial: the bundle's.
            bundle: the bundle that the values belong to.
        """


@dataclasses.dataclass(frozen=True)
class Trained:
    """A kind of training. Its functions import passes, files and torch lazily.

    Attributes:
        words: name of the trained weights in messages.
        formats: export formats, the default first. readable: formats that a state can start from.
        insertion: settings and their modules -> how the weights are inserted into programs.
        write: see :class:`Write`.
        merge: merges the trained values into a transformers model with the bundle's frozen weights;
            takes the model, the state tensors and the bundle.
        read: format, folder, the bundle's state tensors and the bundle -> the folder's tensors.
        needs: features that a target must support, and the setting that requires each.
        mask: settings -> the sparse weights, read before the model; None if the kind has none.
            Raises ConfigError if the settings name no mask, or a file that is not a mask.
        counts: settings, transformers' model and indices by parameter (None: sizes only) -> sizes
            in programs in addition to those of weights and settings.
        for_reference: transformers' model, changed to the frozen one, and the bundle -> inputs of a
            reference in addition to the state tensors.
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
    """Return the kind of training of a method with these settings."""
    return kinds.get(config.trained)


def sizes_of(config: TrainingSettings, model: Any, chosen: Mapping[str, Any] | None) -> list[int]:
    """Return sizes in a captured model except sequence lengths; ``chosen``: of a training graph."""
    lengths = ("max_length", "generate.context")
    settings = as_dict(config).items()
    found = [value for key, value in settings if isinstance(value, int) and key not in lengths]
    found += [size for parameter in model.parameters() for size in parameter.shape]
    return found + list(kind_of(config).counts(config, model, chosen))


def needs_of(config: TrainingSettings) -> dict[Feature, str]:
    """Return the features that a target must support, with the setting that requires each."""
    return {**config.needs, **kind_of(config).needs(config)}
