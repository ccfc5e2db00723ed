"""What a method trains: adapters, chosen weights, the integers of quantized weights, or all weights.

Each kind is a folder whose ``trained.py`` registers a :class:`~zoexport.trained.kind.Trained`. A method's settings name
theirs (``TrainingSettings.trained``), and nothing else distinguishes kinds.
"""

from collections.abc import Mapping
from typing import Any

from zoexport.core.config import as_dict
from zoexport.core.features import Feature
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.trained.kind import Trained

kinds: Registry[Trained] = Registry("kind of training", "zoexport.trained", "trained")


def kind_of(config: TrainingSettings) -> Trained:
    """What a method with these settings trains."""
    return kinds.get(config.trained)


def sizes_of(config: TrainingSettings, model: Any, chosen: Mapping[str, Any] | None) -> list[int]:
    """Numbers that are sizes in a captured model whatever the length of its rows; ``chosen`` is of a training graph."""
    lengths = ("seq_len", "generate.context")
    settings = as_dict(config).items()
    found = [value for key, value in settings if isinstance(value, int) and key not in lengths]
    found += [size for parameter in model.parameters() for size in parameter.shape]
    return found + list(kind_of(config).counts(config, model, chosen))


def needs_of(config: TrainingSettings) -> dict[Feature, str]:
    """What programs with these settings ask of a target, and the setting that asks."""
    return {**config.needs, **kind_of(config).needs(config)}
