"""Chosen weights: the mask that a method trains by, and what a bundle says of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError
from zoexport.core.manifest import checked_file
from zoexport.core.mask import Mask, read_mask

if TYPE_CHECKING:
    import torch


def mask_of(config: Any) -> Mask:
    """The mask that the setting ``mask`` names.

    Raises:
        ConfigError: the settings name none, or a file that is no mask.
    """
    if config.mask is None:
        raise ConfigError(
            "setting 'mask'",
            found="nothing",
            expected="the file that says which weights are trained",
            fix="Write it with `zoexport sensitivity MODEL -o MASK`, then pass --set mask=MASK.",
        )
    return read_mask(Path(config.mask))


def check_mask(mask: Mask, loaded: Any) -> None:
    """Refuse a mask of another model.

    Args:
        loaded: the :class:`~zoexport.models.LoadedModel`.

    Raises:
        ConfigError: the weights' SHA-256 differ.
    """
    if mask.facts.model_sha256 != loaded.sha256:
        raise ConfigError(
            "setting 'mask'",
            found=f"a mask of {mask.facts.model} with SHA-256 {mask.facts.model_sha256[:16]}...",
            expected=f"one of {loaded.name}, {loaded.sha256[:16]}...",
            fix="Write one with `zoexport sensitivity` for this model.",
        )


def places_of(bundle: Path, manifest: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """By parameter, the chosen elements of a bundle: int64 (k), in the order of its slot."""
    from safetensors import safe_open

    from zoexport.passes.separate_chosen import PLACES

    with (
        checked_file(bundle, manifest, manifest["weights"]["file"]) as path,
        safe_open(path, framework="pt") as file,
    ):
        places = file.get_tensor(PLACES).long()
    named = sorted(manifest["chosen"].items(), key=lambda item: item[1])
    return {name: places[begin:end] for name, (begin, end) in named}
