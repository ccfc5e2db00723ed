"""Full fine-tuning: every parameter of the model is a state tensor, in fp32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import refuse
from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.target import Pass
from zoexport.session import Bundle
from zoexport.trained import MERGED, Insertion, Output, Slots, Trained, kinds
from zoexport.trained.model_files import save_model

if TYPE_CHECKING:
    import torch


def needs(_: TrainingSettings) -> dict[Feature, str]:
    """Require two-input products: trained weights are inputs of their products."""
    return {Feature.TWO_INPUT_PRODUCTS: "setting train=full"}


def insertion(_: Any, __: list[str]) -> Insertion:
    """Make every parameter of the model trainable."""
    from zoexport.passes.weights_as_state import weights_as_state

    place = "trains what stages bind, before sizes are chosen"
    return Insertion(families=(Pass("weights_as_state", weights_as_state, place),))


def write(output: Output, slots: Slots, initial: Slots, bundle: Bundle) -> None:
    """Write a folder that transformers loads."""
    from zoexport.models import load_original

    loaded = load_original(bundle.manifest, output.model)
    merge(loaded.model, slots, bundle)
    save_model(output, loaded)


def merge(model: torch.nn.Module, slots: Slots, bundle: Bundle) -> None:
    """Copy the trained parameters into the model."""
    import torch

    for name, value in slots.items():
        model.get_parameter(name).data.copy_(torch.from_numpy(value.copy()))


def read(_: str, folder: Path, own: Slots, __: Bundle) -> Slots:
    """Read the parameters of a folder that :func:`write` wrote."""
    return read_weights(folder, {name: values.shape for name, values in own.items()})


def read_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    """Read the parameters of a model directory.

    Args:
        shapes: shapes of the bundle, by parameter.

    Raises:
        ModelError: there is no model. StateError: it has another architecture or size.
    """
    from zoexport import models

    model = models.load(models.resolve(str(folder))).model
    found = {}
    for name, shape in shapes.items():
        try:
            value = model.get_parameter(name).detach().float().numpy()
        except AttributeError:
            value = None
        if value is None or value.shape != shape:
            refuse(
                f"{folder}",
                found=f"no parameter {name}" if value is None else f"{name} of shape {value.shape}",
                expected=f"{name} of shape {shape}, as the bundle's model has it",
                fix="Import a model of the architecture and size that the bundle was compiled from.",
            )
        found[name] = value
    return found


kinds.register(
    "weights",
    Trained(
        words="the model's weights",
        formats=("hf", MERGED),
        readable=("hf",),
        insertion=insertion,
        write=write,
        merge=merge,
        read=read,
        needs=needs,
    ),
)
