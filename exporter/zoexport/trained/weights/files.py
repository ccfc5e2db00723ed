"""All of a model's weights, trained: a directory as transformers saves and loads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import refuse


def read_weights(
    folder: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    """The parameters of a model directory.

    Args:
        shapes: by parameter, those of the bundle.

    Raises:
        ModelError: no model is there. StateError: one of another architecture or size.
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
