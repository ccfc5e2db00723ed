"""Trained weights of a model in files: the chosen elements alone (``sparse``), or a whole model that has them (``hf``).

``sparse`` is a folder with ``sparse_model.safetensors``: for every parameter with chosen elements
``<parameter>.places``, int64 (k), ascending, ``row * columns + column``; ``<parameter>.values``, float16 (k), the
trained elements; and ``<parameter>.delta``, float32 (k), what training added to them. ``sparse_config.json`` says of
which model.

``hf`` is a Hugging Face model: the original, with the trained elements in their places. Its other weights are the
original ones, not the bundle's quantized ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import refuse, write_json
from zoexport.core.errors import StateError, first_line
from zoexport.core.files import atomic_folder
from zoexport.core.mask import ranges

if TYPE_CHECKING:
    from zoexport.models import LoadedModel

FORMAT = "zoexport-sparse/1"
CONFIG, WEIGHTS = "sparse_config.json", "sparse_model.safetensors"

Places = Mapping[str, NDArray[np.int64]]
"""By parameter, in the order of a bundle's slot."""


def write_sparse(
    folder: Path,
    places: Places,
    values: NDArray[np.float32],
    initial: NDArray[np.float32],
    manifest: Mapping[str, Any],
    *,
    replace: bool = False,
) -> None:
    """Write the chosen elements as a new folder, whole or not at all.

    Args:
        folder: to create. places: of the bundle.
        values, initial: (S) of the slot, trained and as compiled.
        manifest: of the bundle. replace: a folder that is there gives way.

    Raises:
        ConfigError: the folder exists and ``replace`` is off, or the place cannot be written.
    """
    from safetensors.numpy import save

    tensors: dict[str, NDArray[Any]] = {}
    for name, pair in ranges(places).items():
        part = slice(*pair)
        tensors[f"{name}.places"] = places[name]
        tensors[f"{name}.values"] = values[part].astype(np.float16)
        tensors[f"{name}.delta"] = values[part] - initial[part]
    with atomic_folder(folder, replace=replace) as output:
        (output / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
        write_json(output / CONFIG, {"format": FORMAT, "count": values.size, **_model(manifest)})


def write_merged(
    folder: Path,
    places: Places,
    values: NDArray[np.float32],
    loaded: LoadedModel,
    *,
    replace: bool = False,
) -> None:
    """Write the original model with the trained elements, as transformers saves it, with its tokenizer.

    Args:
        folder, places, values, replace: as in :func:`write_sparse`.
        loaded: the original model, which is changed.

    Raises:
        ConfigError: the folder exists and ``replace`` is off, or the place cannot be written.
    """
    import torch

    from zoexport.models.conv1d import conv1d_from_linear

    for name, pair in ranges(places).items():
        weight = loaded.model.get_parameter(name).data
        weight.view(-1)[torch.from_numpy(places[name])] = torch.from_numpy(
            values[slice(*pair)].copy()
        )
    conv1d_from_linear(loaded.model, loaded.transposed)
    model: Any = loaded.model
    with atomic_folder(folder, replace=replace) as output:
        model.save_pretrained(output)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(output)


def read_sparse(folder: Path, places: Places, manifest: Mapping[str, Any]) -> NDArray[np.float32]:
    """The values (S) of a folder that :func:`write_sparse` wrote, for a bundle with the same places.

    Raises:
        StateError: files are missing or damaged, or belong to another model or mask.
    """
    config = _config(folder / CONFIG)
    expected = _model(manifest)["model_sha256"]
    if config.get("model_sha256") != expected:
        refuse(
            f"{folder / CONFIG}",
            found=f"weights of the model {str(config.get('model_sha256'))[:16]}...",
            expected=f"those of {expected[:16]}..., from which the bundle was compiled",
            fix="Use a bundle of the same model.",
        )
    tensors = _tensors(folder / WEIGHTS)
    found = []
    for name, own in places.items():
        theirs, values = tensors.get(f"{name}.places"), tensors.get(f"{name}.values")
        if theirs is None or values is None or not np.array_equal(theirs, own):
            refuse(
                f"{folder / WEIGHTS}, {name}",
                found="no such weight" if theirs is None else "other places",
                expected=f"the {own.size} places that the bundle trains",
                fix="Use a bundle that was compiled with the same mask.",
            )
        if values.shape != own.shape or not np.isfinite(values).all():
            refuse(
                f"{folder / WEIGHTS}, {name}.values",
                found=f"{values.shape}, or values that are not finite",
                expected=f"{own.size} finite numbers",
                fix="Export it again from a run that did not diverge.",
            )
        found.append(values.astype(np.float32))
    return np.concatenate(found)


def _model(manifest: Mapping[str, Any]) -> dict[str, str]:
    model = manifest["model"]
    return {"base_model": model["source"], "model_sha256": model["sha256"]}


def _config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        refuse(
            f"{path}",
            found="another format",
            expected=FORMAT,
            fix="Name the folder that `zoexport adapter export --format sparse` wrote.",
        )
    return content


def _tensors(path: Path) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StateError:
    return StateError(
        f"{path}",
        found=f"no readable file ({first_line(error)})",
        expected=f"{CONFIG} and {WEIGHTS}, as zoexport writes them",
        fix="Name the folder that `zoexport adapter export --format sparse` wrote.",
    )
