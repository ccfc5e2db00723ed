"""Adapter files of arrays, through the session's library (``zo_adapter_write``, ``_read``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters.files import Array
from zoexport.adapters.formats import Slots, slot_modules
from zoexport.session import abi

OUTTYPES = ("f32", "f16", "q8_0")
"""Dtypes of a GGUF file."""


def write_peft(path: Path, slots: Slots, description: str, *, replace: bool) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` atomically as a folder.

    Args:
        path: the folder. slots: the adapter's. description: text of ``adapter_config.json``.
        replace: replace an existing path.

    Raises:
        ConfigError: the path exists and ``replace`` is off, it cannot be written, or a number is not finite.
    """
    _write(path, {"description": description, "replace": replace}, slots, {})


def write_gguf(
    path: Path,
    slots: Slots,
    names: Mapping[str, Any],
    alpha: float,
    *,
    base_model: str,
    outtype: str,
    replace: bool,
) -> None:
    """Write a GGUF file atomically.

    Args:
        path: the file. slots: the adapter's. names: see ``llama_cpp_names.names_of``.
        alpha: of all layers. base_model: its name, or empty. outtype: one of :data:`OUTTYPES`.
        replace: replace an existing path.

    Raises:
        ConfigError: see :func:`write_peft`; or a value is out of the range of ``outtype``.
    """
    options = {
        "format": "gguf",
        "outtype": outtype,
        "architecture": names["architecture"],
        "base_model": base_model,
        "alpha": alpha,
        "replace": replace,
    }
    _write(path, options, slots, names["layers"])


def read_peft(
    path: Path, shapes: Mapping[str, tuple[int, ...]], description: str
) -> dict[str, Array]:
    """Read a folder that :func:`write_peft` or PEFT wrote.

    Args:
        path: the folder. shapes: shapes of all lora_A and lora_B tensors; the folder has no others.
        description: text of an ``adapter_config.json`` with the required ranks and scales.

    Returns:
        The tensors in the order of ``shapes``, float32, contiguous.

    Raises:
        StateError: files are missing or damaged, or do not fit, or a value is not finite.
    """
    modules = slot_modules(shapes)
    slots: dict[str, Array] = {}
    for module in modules:
        for name in (f"lora_{half}.{module}" for half in "AB"):
            slots[name] = np.empty(shapes[name], np.float32)
    options = {"description": description, "layers": _layers(modules, slots, {})}
    matrices = _pointers(list(slots.values()))
    abi.call(
        *("zo_adapter_read", abi.path_bytes(path), abi.options(options), matrices, len(matrices))
    )
    return {name: slots[name] for name in shapes}


def _write(path: Path, options: dict[str, Any], slots: Slots, names: Mapping[str, Any]) -> None:
    modules = sorted(slot_modules(slots))
    kept = [
        np.ascontiguousarray(slots[f"lora_{half}.{module}"], np.float32)
        for module in modules
        for half in "AB"
    ]
    options = {**options, "layers": _layers(modules, slots, names)}
    matrices = _pointers(kept)
    abi.call(
        *("zo_adapter_write", abi.options(options), matrices, len(matrices), abi.path_bytes(path))
    )


def _layers(
    modules: Sequence[str], slots: Mapping[str, Any], names: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the option ``layers``."""
    found = []
    for module in modules:
        (inputs, rank), outputs = (
            slots[f"lora_A.{module}"].shape,
            slots[f"lora_B.{module}"].shape[1],
        )
        name = names.get(module, {})
        layer = {"module": module, "inputs": inputs, "rank": rank, "outputs": outputs}
        if "weight" in name:
            layer |= {"weight": name["weight"], **name.get("order", {})}
        found.append(layer)
    return found


def _pointers(matrices: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(matrices))(*(matrix.ctypes.data for matrix in matrices))
