"""Chosen elements of the weights, one slot for all of them; the others are frozen, and zero at their places.

Settings have ``mask``, ``queries`` and ``density``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Pass
from zoexport.trained import kinds
from zoexport.trained.kind import MERGED, Bundle, Insertion, Output, Slots, Trained
from zoexport.trained.sparse.places import mask_of, places_of

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def needs(_: TrainingSettings) -> dict[Feature, str]:
    """A product of the chosen weights, beside that of the frozen ones."""
    return {Feature.SPARSE_PRODUCTS: "setting mask"}


def insertion(config: Any, targets: list[str]) -> Insertion:
    """The chosen elements of the weights of ``targets``."""
    from zoexport.passes.separate_chosen import separate_chosen

    separation = Pass(
        "separate_chosen",
        lambda graph: separate_chosen(
            graph, targets, queries=config.queries, density=config.density
        ),
        "finds weights by the model's names, which stages rename, and takes from them before they are quantized",
    )
    return Insertion(captured=(separation,))


def counts(config: Any, model: Any, chosen: Mapping[str, Any] | None) -> list[int]:
    """How many elements of each weight are chosen, and of all together."""
    if chosen is None:
        from zoexport.models import adapter_targets
        from zoexport.passes.separate_chosen import spread_count

        names = adapter_targets(model, *config.modules)
        sizes = [model.get_submodule(name).weight.numel() for name in names]
        found = [spread_count(size, config.density) for size in sizes]
    else:
        found = [len(places) for places in chosen.values()]
    return [*found, sum(found)]


def for_reference(
    model: torch.nn.Module, bundle: Path, manifest: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """``places.<parameter>``, int64 (k), where the model's weights become zero."""
    chosen = places_of(bundle, manifest)
    for name, places in chosen.items():
        values = model.get_parameter(name).data.view(-1)
        if values[places].any():  # zeros without memory stay so
            values[places] = 0
    return {f"places.{name}": places for name, places in chosen.items()}


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """The elements alone, or the original model with them."""
    from zoexport.models import load_original
    from zoexport.trained.model_files import save_model
    from zoexport.trained.sparse.files import write_sparse

    if output.kind == "sparse":
        ((name, values),) = slots.items()
        first, places = initial[name], _places(bundle)
        write_sparse(output.path, places, values, first, bundle.manifest, replace=output.replace)
        return
    loaded = load_original(bundle.manifest, output.model)
    merge(loaded.model, slots, bundle)
    save_model(output, loaded)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """The elements in their places."""
    from zoexport.trained.sparse.files import set_elements

    (values,) = slots.values()
    set_elements(model, _places(bundle), values)


def read(_: str, folder: Path, own: Slots, bundle: Bundle) -> Slots:
    """The elements of a folder of ``sparse``."""
    from zoexport.trained.sparse.files import read_sparse

    (name,) = own
    return {name: read_sparse(folder, _places(bundle), bundle.manifest)}


def _places(bundle: Bundle) -> dict[str, NDArray[Any]]:
    found = places_of(bundle.folder, bundle.manifest)
    return {name: places.numpy() for name, places in found.items()}


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
