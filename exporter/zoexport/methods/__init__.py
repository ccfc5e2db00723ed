"""Training methods, one module each, found through :data:`methods`; :mod:`.reference` has them in PyTorch."""

from collections.abc import Mapping
from typing import Any

from zoexport.core.config import parse
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Method

methods: Registry[Method] = Registry("method", __name__)


def config_of(manifest: Mapping[str, Any]) -> TrainingSettings:
    """The settings of a bundle."""
    return parse(methods.get(manifest["method"]).config, manifest["settings"])
