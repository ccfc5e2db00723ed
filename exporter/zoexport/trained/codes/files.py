"""Trained integers of a model in files: codes and scales (``quantized``), or a whole model that has them (``hf``).

``quantized`` is a folder with ``quantized_model.safetensors``: for every trained parameter ``<parameter>.codes`` and
``<parameter>.scales`` in the packing that ``quantized_config.json`` names (docs/int4.md), beside the model that they
belong to.

``hf`` is a Hugging Face model: the original, in which every trained weight is scale times integer. Its other weights
are the original ones, not the bundle's quantized ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoexport.adapters.files import refuse, write_json
from zoexport.core import int4
from zoexport.core.files import atomic_folder
from zoexport.core.manifest import checked_file
from zoexport.trained.model_files import (
    check_model,
    model_of,
    read_description,
    read_tensors,
)

FORMAT = "zoexport-quantized/1"
CONFIG, WEIGHTS = "quantized_config.json", "quantized_model.safetensors"

CODES = ".codes"
Parts = Mapping[str, tuple[Tensor, Tensor]]
"""By parameter: codes uint8 (N, K/2) or int8 (N, K), and scales."""


def write_quantized(
    folder: Path, parts: Parts, manifest: Mapping[str, Any], *, replace: bool = False
) -> None:
    """Write codes and scales as a new folder, whole or not at all.

    Raises:
        ConfigError: the folder exists and ``replace`` is off, or the place cannot be written.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, (codes, scales) in parts.items():
        tensors |= {f"{name}.codes": codes.contiguous(), f"{name}.scales": scales.contiguous()}
    with atomic_folder(folder, replace=replace) as output:
        (output / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
        config = {"format": FORMAT, "packing": manifest["packing"], **model_of(manifest)}
        write_json(output / CONFIG, config)


def set_dequantized(model: torch.nn.Module, parts: Parts) -> None:
    """Put scale times integer into the trained weights of a model."""
    for name, (codes, scales) in parts.items():
        model.get_parameter(name).data.copy_(_dequantized(codes, scales))


def read_quantized(folder: Path, parts: Parts, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """The codes by parameter of a folder that :func:`write_quantized` wrote.

    Args:
        parts: of the bundle; the file must have the same scales.

    Raises:
        StateError: files are missing or damaged, or belong to another model or grid.
    """
    path = folder / CONFIG
    check_model(path, read_description(path, FORMAT, "quantized"), manifest)
    tensors = read_tensors(folder / WEIGHTS, "quantized")
    codes = {}
    for name, (own, scales) in parts.items():
        theirs = tensors.get(f"{name}.codes")
        if (
            theirs is None
            or (theirs.dtype, theirs.shape) != (own.dtype, own.shape)
            or not _equal(tensors.get(f"{name}.scales"), scales)
        ):
            refuse(
                f"{folder / WEIGHTS}, {name}",
                found="no such weight" if theirs is None else "another shape, or other scales",
                expected=f"codes {tuple(own.shape)} on the bundle's own grid",
                fix="Use a bundle of the same model, weights and group_size.",
            )
        if theirs.dtype == torch.int8 and int(theirs.min()) < -127:
            refuse(
                f"{folder / WEIGHTS}, {name}",
                found="the code -128",
                expected="codes from -127 to 127",
                fix="Export it again.",
            )
        codes[name] = theirs
    return codes


def _equal(theirs: Tensor | None, own: Tensor) -> bool:
    return theirs is not None and theirs.dtype == own.dtype and torch.equal(theirs, own)


def scales_of(bundle: Path, manifest: Mapping[str, Any]) -> dict[str, Tensor]:
    """The scales of every trained parameter of a bundle, as its file of weights has them."""
    from safetensors import safe_open

    with (
        checked_file(bundle, manifest, manifest["weights"]["file"]) as path,
        safe_open(path, framework="pt") as file,
    ):
        return {
            name: file.get_tensor(f"{name}.scales")
            for slot in manifest["state"]
            if slot["role"] == "trainable"
            for name in [slot["name"].removesuffix(CODES)]
        }


def parts_of(scales: Mapping[str, Tensor], slots: Mapping[str, Any]) -> Parts:
    """Codes beside scales; ``slots``: ``<parameter>.codes`` as the bundle packs them, numpy arrays."""
    return {
        name: (torch.from_numpy(slots[f"{name}{CODES}"].copy()), scale)
        for name, scale in scales.items()
    }


def adapters_of(parts: Parts) -> dict[str, Any]:
    """Quantized adapters as slots of adapters: ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out)."""
    found = {}
    for name, (codes, scales) in parts.items():
        module, _, half = name.removesuffix(".weight").rpartition(".")
        found[f"{half}.{module}"] = _dequantized(codes, scales).T.contiguous().numpy()
    return found


def _dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    dequantize = int4.dequantize_int4 if codes.dtype == torch.uint8 else int4.dequantize_int8
    return dequantize(codes, scales)
