"""What a method trains: adapters, chosen weights, the integers of quantized weights, or all weights.

Each kind is a folder whose ``trained.py`` registers a :class:`~zoexport.trained.kind.Trained`. A method's settings name
theirs (``TrainingSettings.trained``), and nothing else distinguishes kinds.
"""

from zoexport.core.features import Feature
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.trained.kind import Trained

kinds: Registry[Trained] = Registry("kind of training", "zoexport.trained", "trained")


def kind_of(config: TrainingSettings) -> Trained:
    """What a method with these settings trains."""
    return kinds.get(config.trained)


def needs_of(config: TrainingSettings) -> dict[Feature, str]:
    """What programs with these settings ask of a target, and the setting that asks."""
    return {**config.needs, **kind_of(config).needs(config)}
