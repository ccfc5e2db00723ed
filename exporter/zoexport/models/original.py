"""Loading of the model that a bundle was compiled from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zoexport.core.errors import ModelError
from zoexport.models.experts import route_experts
from zoexport.models.load import LoadedModel, load
from zoexport.models.source import resolve


def load_original(manifest: Mapping[str, Any], model: str | None = None) -> LoadedModel:
    """Load the model that a bundle was compiled from.

    Args:
        manifest: manifest of the bundle.
        model: path or hub id of the model, if it has moved since compilation.

    Raises:
        ModelError: the model cannot be loaded, or is not the original.
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
    if manifest["model"].get("experts") == "routed":
        route_experts(loaded.model)
    return loaded
