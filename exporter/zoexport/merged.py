"""``--format merged``: the model that a session trained, as one that transformers loads.

Its weights are those that the session computes with: every linear layer and the token embedding as the bundle quantized
them, and in them what was trained. So its losses are the session's, but for activations that programs round. The
original model is read again for everything else, and its weights are rounded as the compile did: bundles keep weights
in the layout of an engine, whole programs inside themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from zoexport.core import hadamard
from zoexport.models import load_original
from zoexport.parity.quantized import round_channels, rounded, rounds_channels, stored_weights
from zoexport.trained import Bundle, Output, Slots, Trained
from zoexport.trained.model_files import save_model


def write_merged(trained: Trained, output: Output, slots: Slots, bundle: Bundle) -> None:
    """Write the model as a new folder, whole or not at all.

    Raises:
        ModelError: the original model cannot be loaded, or is another one.
        ConfigError: the folder exists and ``output.replace`` is off, or the place cannot be written.
    """
    loaded = load_original(bundle.manifest, output.model)
    # Of a kind that freezes another model than the original, the frozen one.
    trained.for_reference(loaded.model, bundle.folder, bundle.manifest)
    round_weights(loaded.model, bundle.manifest["settings"], bundle.manifest["rotated_weights"])
    trained.merge(loaded.model, slots, bundle)
    save_model(output, loaded)


def round_weights(model: Any, settings: Mapping[str, Any], rotated: Collection[str]) -> None:
    """Round the weights of linear layers and of the token embedding as a bundle with these settings has them.

    Args:
        model: a transformers model, fp32.
        settings: ``weights``, ``activations`` and ``group_size`` of the bundle's manifest.
        rotated: names of the parameters that the bundle stores rotated (``core.hadamard``).
    """
    if settings["weights"] == "fp32":
        return
    if rounds_channels(settings):
        round_channels(model, settings)
        return
    for weight, turns in stored_weights(model, rotated).values():
        # A rotation is its own inverse: rounded as stored, then as the layer's inputs see it.
        values = rounded(hadamard.rotate_rows(weight) if turns else weight, settings)
        weight.copy_(hadamard.rotate_rows(values) if turns else values)
