"""Train sparse weights, all in one state tensor; the frozen weights are zero at their indices.

Settings: ``mask``, ``num_queries`` and ``density``.

``sparse`` is a folder with ``sparse_model.safetensors``: for every parameter with sparse weights
``<parameter>.places``, int64 (k), ascending, ``row * columns + column``; ``<parameter>.values``, float16 (k), the
trained elements; and ``<parameter>.delta``, float32 (k), their change by training.
``sparse_config.json`` identifies the model.

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
from zoexport.core.errors import ConfigError
from zoexport.core.features import Feature
from zoexport.core.files import atomic_folder
from zoexport.core.manifest import checked_file
from zoexport.core.mask import Mask, ranges, read_mask
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Pass
from zoexport.session import Bundle
from zoexport.trained import MERGED, Insertion, Output, Slots, Trained, kinds
from zoexport.trained.model_files import (
    check_model,
    model_of,
    read_description,
    read_tensors,
    save_model,
)

if TYPE_CHECKING:
    import torch

FORMAT = "zoexport-sparse/1"
CONFIG, WEIGHTS = "sparse_config.json", "sparse_model.safetensors"

Places = Mapping[str, NDArray[np.int64]]
"""By parameter, in the order of a bundle's slot."""


def needs(_: TrainingSettings) -> dict[Feature, str]:
    """Require sparse products, which add the trained elements to frozen products."""
    return {Feature.SPARSE_PRODUCTS: "setting mask"}


def insertion(config: Any, targets: list[str]) -> Insertion:
    """Train the sparse weights of ``targets``."""
    from zoexport.passes.separate_chosen import separate_chosen

    separation = Pass(
        "separate_chosen",
        lambda graph: separate_chosen(
            graph, targets, queries=config.num_queries, density=config.density
        ),
        "finds weights by the model's names, which stages rename, and takes from them before they are quantized",
    )
    return Insertion(captured=(separation,))


def counts(config: Any, model: Any, chosen: Mapping[str, Any] | None) -> list[int]:
    """Return the number of sparse weights of each parameter, and of all parameters."""
    if chosen is None:
        from zoexport.models import adapter_targets
        from zoexport.passes.separate_chosen import spread_count

        names = adapter_targets(model, *config.modules)
        sizes = [model.get_submodule(name).weight.numel() for name in names]
        found = [spread_count(size, config.density) for size in sizes]
    else:
        found = [len(places) for places in chosen.values()]
    return [*found, sum(found)]


def for_reference(model: torch.nn.Module, bundle: Bundle) -> dict[str, torch.Tensor]:
    """Return indices ``places.<parameter>``, int64 (k); set the model's weights there to zero."""
    chosen = places_of(bundle)
    for name, places in chosen.items():
        values = model.get_parameter(name).data.view(-1)
        if values[places].any():  # zeros without memory stay so
            values[places] = 0
    return {f"places.{name}": places for name, places in chosen.items()}


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Write the elements alone, or the original model with them."""
    from zoexport.models import load_original

    if output.kind == "sparse":
        ((name, values),) = slots.items()
        first, places = initial[name], _places(bundle)
        write_sparse(output.path, places, values, first, bundle.manifest, replace=output.replace)
        return
    loaded = load_original(bundle.manifest, output.model)
    merge(loaded.model, slots, bundle)
    save_model(output, loaded)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """Put the elements into the model."""
    (values,) = slots.values()
    set_elements(model, _places(bundle), values)


def read(_: str, folder: Path, own: Slots, bundle: Bundle) -> Slots:
    """Read the elements of a ``sparse`` folder."""
    (name,) = own
    return {name: read_sparse(folder, _places(bundle), bundle.manifest)}


def _places(bundle: Bundle) -> dict[str, NDArray[Any]]:
    return {name: places.numpy() for name, places in places_of(bundle).items()}


def mask_of(config: Any) -> Mask:
    """Read the mask that the setting ``mask`` names.

    Raises:
        ConfigError: the settings name no mask, or a file that is not a mask.
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
        ConfigError: the SHA-256 of the weights differs.
    """
    if mask.facts.model_sha256 != loaded.sha256:
        raise ConfigError(
            "setting 'mask'",
            found=f"a mask of {mask.facts.model} with SHA-256 {mask.facts.model_sha256[:16]}...",
            expected=f"one of {loaded.name}, {loaded.sha256[:16]}...",
            fix="Write one with `zoexport sensitivity` for this model.",
        )


def places_of(bundle: Bundle) -> dict[str, torch.Tensor]:
    """Return a bundle's sparse indices by parameter: int64 (k), in the state tensor's order."""
    from safetensors import safe_open

    from zoexport.passes.separate_chosen import PLACES

    manifest = bundle.manifest
    with (
        checked_file(bundle.path, manifest, manifest["weights"]["file"]) as path,
        safe_open(path, framework="pt") as file,
    ):
        places = file.get_tensor(PLACES).long()
    named = sorted(manifest["chosen"].items(), key=lambda item: item[1])
    return {name: places[begin:end] for name, (begin, end) in named}


def write_sparse(
    folder: Path,
    places: Places,
    values: NDArray[np.float32],
    initial: NDArray[np.float32],
    manifest: Mapping[str, Any],
    *,
    replace: bool = False,
) -> None:
    """Write the sparse weights atomically as a new folder.

    Args:
        folder: folder to create. places: indices of the bundle.
        values, initial: state tensor (S), trained and as compiled.
        manifest: manifest of the bundle. replace: replace an existing folder.

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
    """Put the sparse weights (S) into the weights of a model."""
    import torch

    for name, pair in ranges(places).items():
        weight = model.get_parameter(name).data
        weight.view(-1)[torch.from_numpy(places[name])] = torch.from_numpy(
            values[slice(*pair)].copy()
        )


def read_sparse(folder: Path, places: Places, manifest: Mapping[str, Any]) -> NDArray[np.float32]:
    """Read the values (S) of a :func:`write_sparse` folder, for a bundle with the same indices.

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


kinds.register(
    "sparse",
    Trained(
        words="chosen weights",
        formats=("sparse", "hf", MERGED),
        readable=("sparse",),
        insertion=insertion,
        write=write,
        merge=merge,
        read=read,
        needs=needs,
        mask=mask_of,
        counts=counts,
        for_reference=for_reference,
    ),
)
