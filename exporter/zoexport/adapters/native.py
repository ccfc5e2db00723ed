"""Adapters' files as the session's library writes and reads them, of arrays (``zo_adapter_write`` and ``_read``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters.files import Array
from zoexport.adapters.formats import Slots, slot_modules
from zoexport.session import abi, structs


def write_peft(path: Path, slots: Slots, description: str, *, replace: bool) -> None:
    """Write a folder of ``adapter_config.json`` and ``adapter_model.safetensors``, whole or not at all.

    Args:
        path: the folder. slots: of the adapter. description: the text of ``adapter_config.json``.
        replace: what is at the path gives way.

    Raises:
        ConfigError: the path exists and ``replace`` is off, it cannot be written, or a number is not finite.
    """
    adapter = structs.Adapter(description=description.encode())
    _write(path, adapter, slots, {}, "peft", "f32", replace)


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
    """Write a GGUF file, whole or not at all.

    Args:
        path: the file. slots: of the adapter. names: see ``llama_cpp_names.names_of``.
        alpha: of all layers. base_model: its own name, or empty. outtype: one of ``structs.OUTTYPES``.
        replace: what is at the path gives way.

    Raises:
        ConfigError: as of :func:`write_peft`, or a number is beyond the range of ``outtype``.
    """
    adapter = structs.Adapter(
        architecture=names["architecture"].encode(),
        base_model=base_model.encode(),
        alpha=alpha,
    )
    _write(path, adapter, slots, names["layers"], "gguf", outtype, replace)


def read_peft(
    path: Path, shapes: Mapping[str, tuple[int, ...]], description: str
) -> dict[str, Array]:
    """Read a folder that :func:`write_peft` or PEFT wrote.

    Args:
        path: the folder. shapes: of every slot, each one half of an adapter; the folder has these and nothing else.
        description: the text of an ``adapter_config.json`` whose ranks and scales the adapter must have.

    Returns:
        The slots in the order of ``shapes``, float32, contiguous.

    Raises:
        StateError: files are missing or damaged, or do not fit; a number is not finite.
    """
    modules = slot_modules(shapes)
    rooms = (structs.AdapterRoom * len(modules))()
    slots: dict[str, Array] = {}
    for room, module in zip(rooms, modules, strict=True):
        names = [f"lora_{half}.{module}" for half in "AB"]
        a, b = (np.empty(shapes[name], np.float32) for name in names)
        slots |= zip(names, (a, b), strict=True)
        room.module = module.encode()
        (room.inputs, room.rank), room.outputs = a.shape, b.shape[1]
        room.a, room.b = a.ctypes.data, b.ctypes.data
    abi.call("zo_adapter_read", abi.path_bytes(path), description.encode(), rooms, len(modules))
    return {name: slots[name] for name in shapes}


def _write(
    path: Path,
    adapter: structs.Adapter,
    slots: Slots,
    names: Mapping[str, Any],
    kind: str,
    outtype: str,
    replace: bool,
) -> None:
    modules = sorted(slot_modules(slots))
    layers = (structs.AdapterLayer * len(modules))()
    kept = []  # where they lie is all that a layer knows of its matrices
    for layer, module in zip(layers, modules, strict=True):
        a, b = (np.ascontiguousarray(slots[f"lora_{half}.{module}"], np.float32) for half in "AB")
        kept += [a, b]
        name = names.get(module, {})
        layer.module = module.encode()
        layer.weight = name.get("weight", "").encode()
        layer.inputs, layer.rank = a.shape
        layer.outputs = b.shape[1]
        layer.a, layer.b = a.ctypes.data, b.ctypes.data
        for key, value in name.get("order", {}).items():
            setattr(layer, key, value)
    adapter.struct_size = ctypes.sizeof(adapter)
    adapter.layers, adapter.layer_count = layers, len(modules)
    options = structs.export_options(kind, outtype, replace=replace)
    abi.call(
        "zo_adapter_write",
        ctypes.byref(adapter),
        ctypes.byref(options),
        abi.path_bytes(path),
    )
