"""Trained weights of a model in files: the chosen elements alone (``sparse``), or a whole model that has them (``hf``).

``sparse`` is a folder with ``sparse_model.safetensors``: for every parameter with chosen elements
``<parameter>.places``, int64 (k), ascending, ``row * columns + column``; ``<parameter>.values``, float16 (k), the
trained elements; and ``<parameter>.delta``, float32 (k), what training added to them. ``sparse_config.json`` says of
which model.

``hf`` is a Hugging Face model: the original, with the trained elements in their places. Its other weights are the
original ones, not the bundle's quantized ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import refuse, write_json
from zoexport.core.files import atomic_folder
from zoexport.core.mask import ranges
from zoexport.trained.model_files import (
    check_model,
    model_of,
    read_description,
    read_tensors,
)

if TYPE_CHECKING:
    import torch

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
        write_json(output / CONFIG, {"format": FORMAT, "count": values.size, **model_of(manifest)})


def set_elements(model: torch.nn.Module, places: Places, values: NDArray[np.float32]) -> None:
    """Put the chosen elements, (S) of the slot, into the weights of a model."""
    import torch

    for name, pair in ranges(places).items():
        weight = model.get_parameter(name).data
        weight.view(-1)[torch.from_numpy(places[name])] = torch.from_numpy(
            values[slice(*pair)].copy()
        )


def read_sparse(folder: Path, places: Places, manifest: Mapping[str, Any]) -> NDArray[np.float32]:
    """The values (S) of a folder that :func:`write_sparse` wrote, for a bundle with the same places.

    Raises:
        StateError: files are missing or damaged, or belong to another model or mask.
    """
    check_model(folder / CONFIG, read_description(folder / CONFIG, FORMAT, "sparse"), manifest)
    read = read_tensors(folder / WEIGHTS, "sparse")
    tensors = {name: tensor.numpy() for name, tensor in read.items()}
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
