"""Training methods, one module each, found through :data:`methods`; :mod:`.reference` has them in PyTorch."""

from collections.abc import Mapping
from typing import Any

from zoexport.core.config import as_dict, keys_of, parse
from zoexport.core.registry import Registry
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Method

methods: Registry[Method] = Registry("method", __name__)


def config_of(manifest: Mapping[str, Any]) -> TrainingSettings:
    """The settings of a bundle."""
    return parse(methods.get(manifest["method"]).config, manifest["settings"])


def runtime_settings(
    method: str, by_key: Mapping[str, Any] | None, named: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings of ``train --set`` with their types, checked by the method's own rules.

    Args:
        by_key: under their keys. named: more of them, as keyword arguments are named.

    Raises:
        ConfigError: unknown, impossible, or compiled into the bundle.
    """
    kind = methods.get(method).config
    settings = {**(by_key or {}), **keys_of(kind, named or {})}
    chosen = as_dict(parse(kind, settings, runtime_only=True))
    return {key: chosen[key] for key in settings}
