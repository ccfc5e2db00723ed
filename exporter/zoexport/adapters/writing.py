"""Adapters' files as the session's library writes them, of arrays: ``zo_adapter_write``."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters.formats import AdapterSettings, Slots, slot_modules
from zoexport.session import abi


def write_peft(path: Path, slots: Slots, description: str, *, replace: bool) -> None:
    """Write a folder of ``adapter_config.json`` and ``adapter_model.safetensors``, whole or not at all.

    Args:
        path: the folder. slots: of the adapter. description: the text of ``adapter_config.json``.
        replace: what is at the path gives way.

    Raises:
        ConfigError: the path exists and ``replace`` is off, it cannot be written, or a number is not finite.
    """
    adapter = abi.Adapter(description=description.encode())
    _write(path, adapter, slots, {}, "peft", "f32", replace)


def write_gguf(
    path: Path,
    slots: Slots,
    names: Mapping[str, Any],
    settings: AdapterSettings,
    *,
    outtype: str,
    replace: bool,
) -> None:
    """Write a GGUF file, whole or not at all.

    Args:
        path: the file. slots: of the adapter. names: see ``llama_cpp_names.names_of``.
        settings: of the adapter. outtype: one of ``abi.OUTTYPES``.
        replace: what is at the path gives way.

    Raises:
        ConfigError: as of :func:`write_peft`, or a number is beyond the range of ``outtype``.
    """
    adapter = abi.Adapter(
        architecture=names["architecture"].encode(),
        base_model=settings.base_model.encode(),
        alpha=settings.alpha,
    )
    _write(path, adapter, slots, names["layers"], "gguf", outtype, replace)


def _write(
    path: Path,
    adapter: abi.Adapter,
    slots: Slots,
    names: Mapping[str, Any],
    kind: str,
    outtype: str,
    replace: bool,
) -> None:
    modules = sorted(slot_modules(slots))
    layers = (abi.AdapterLayer * len(modules))()
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
    options = abi.export_options(kind, outtype, replace=replace)
    abi.call(
        "zo_adapter_write",
        ctypes.byref(adapter),
        ctypes.byref(options),
        abi.path_bytes(path),
    )
