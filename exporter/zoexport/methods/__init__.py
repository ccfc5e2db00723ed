"""Training methods, one module each, registered in :data:`methods`.

PyTorch versions in :mod:`.reference`.
"""

from collections.abc import Mapping
from typing import Any

from zoexport.core.config import as_dict, keys_of, parse
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Method

methods: Registry[Method] = Registry("method", __name__)


def config_of(manifest: Mapping[str, Any]) -> TrainingSettings:
    """Return the settings of a bundle."""
    return parse(methods.get(manifest["method"]).config, manifest["settings"])


def runtime_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``train --set`` with their types, validated by the method.

    Args:
        method: name of the method.
        settings: values by key (``dpo.beta``) or keyword (``dpo_beta``).

    Raises:
        ConfigError: unknown, impossible, or compiled into the bundle.
    """
    kind = methods.get(method).config
    settings = keys_of(kind, settings)
    chosen = as_dict(parse(kind, settings, runtime_only=True))
    return {key: chosen[key] for key in settings}
