"""The model that a bundle was compiled from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoexport.core.errors import ModelError
from zoexport.models.load import LoadedModel, load
from zoexport.models.source import resolve


def load_original(manifest: Mapping[str, Any], model: str | None = None) -> LoadedModel:
    """Load it again.

    Args:
        manifest: of the bundle.
        model: where it is, if not where it was compiled from.

    Raises:
        ModelError: it cannot be loaded, or it is another one.
    """
    loaded = load(resolve(model or manifest["model"]["source"]))
    expected = manifest["model"]["sha256"]
    if loaded.sha256 != expected:
        raise ModelError(
            f"model {loaded.name}",
            found=f"weights with SHA-256 {loaded.sha256[:16]}...",
            expected=f"the weights that the bundle was compiled from, {expected[:16]}...",
            fix="Pass the original model with --model.",
        )
    return loaded
