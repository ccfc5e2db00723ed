"""Files common to the formats: a JSON description, and safetensors with A and B per layer."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zoexport.adapters.formats import Slots, slot_modules
from zoexport.core import outside, tensor_file
from zoexport.core.errors import StateError, first_line

CONFIG = "adapter_config.json"
"""PEFT and mlx-lm call their descriptions the same; what is in them differs."""

Array = np.ndarray[Any, np.dtype[np.float32]]
_LONGEST_NAME = 200


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of a tool's adapter files.

    Attributes:
        tool: name of the tool in messages.
        weights: name of the file with the tensors.
        key: maps a state tensor to its name in that file.
        slot: maps a name in that file to its state tensor; other names are unchanged.
    """

    tool: str
    weights: str
    key: Callable[[str], str]
    slot: Callable[[str], str]


def tensors_of(slots: Slots, layout: Layout) -> dict[str, Array]:
    """Return the float32 tensors of a weights file, in an order independent of ``slots``."""
    names = [
        f"{half}.{module}"
        for module in sorted(slot_modules(slots))
        for half in ("lora_A", "lora_B")
    ]
    return {layout.key(name): np.ascontiguousarray(slots[name], dtype=np.float32) for name in names}


def json_text(content: Mapping[str, Any]) -> str:
    """Serialize an object with sorted keys: the same content gives the same bytes."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object serialized by :func:`json_text`."""
    path.write_text(json_text(content), encoding="utf-8")


def read_config(folder: Path, tool: str, weights: str) -> dict[str, Any]:
    """Read a folder's ``adapter_config.json``.

    Args:
        folder: an adapter or a bundle. tool: tool that wrote it. weights: name of its weights file.

    Raises:
        StateError: the file is missing or is not a JSON object.
    """
    path = folder / CONFIG
    try:
        content = outside.parse(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StateError(
            f"{path}",
            found=str(reason).lower() if isinstance(error, OSError) else str(reason),
            expected=f"an adapter of {tool}: {CONFIG} and {weights}",
            fix=f"Name the folder that {tool} wrote.",
        ) from error
    if not isinstance(content, dict):
        refuse(
            f"{path}",
            found=f"a JSON {type(content).__name__}",
            expected="an object",
            fix=f"Use the file that {tool} wrote.",
        )
    return content


def check_number(where: str, found: Any, expected: float, setting: str, value: float = 1) -> None:
    """Refuse a number of a description that differs from the bundle's.

    Args:
        where: file and key.
        found: value in the description.
        expected: value according to the bundle's settings.
        setting: the compile setting that determines it.
        value: factor from the number to the setting.

    Raises:
        StateError: they differ by more than float32 rounding.
    """
    numeric = isinstance(found, int | float) and not isinstance(found, bool)
    if numeric and math.isclose(found, expected, rel_tol=1e-6):
        return
    refuse(
        where,
        found=f"{found!r}",
        expected=f"{expected:g}, as the bundle was compiled",
        fix=f"Compile the model with --set {setting}={found * value:g}."
        if numeric
        else "Use an adapter whose description has it.",
    )


def read_slots(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], layout: Layout
) -> dict[str, Array]:
    """Read all tensors of ``shapes`` from a folder's weights file, which has no others.

    Returns:
        The tensors in the order of ``shapes``, float32, contiguous.

    Raises:
        StateError: the file is missing or damaged, or a name, shape, type or value does not fit.
    """
    path = folder / layout.weights
    tensors = _read_tensors(path, layout)
    names = {layout.slot(name): name for name in tensors}
    if len(names) < len(tensors):
        kept = names.values()
        refuse(
            f"{path}",
            found=f"two tensors of {shown(layout.slot(next(n for n in tensors if n not in kept)))}",
            expected="one",
            fix="Export the adapter again.",
        )
    check_names(path, names, shapes, layout.key)
    slots: dict[str, Array] = {}
    for slot, shape in shapes.items():
        name = names[slot]
        if tensors[name].shape != tuple(shape):
            refuse(
                f"{path}, {name}",
                found=f"the shape {tensors[name].shape}",
                expected=f"{tuple(shape)}, as the bundle has it",
                fix="Use an adapter for the same base model and rank.",
            )
        check_finite(f"{path}, {name}", tensors[name])
        slots[slot] = np.ascontiguousarray(tensors[name])
    return slots


def check_finite(where: str, values: Array) -> None:
    """Refuse infinite and NaN values.

    Raises:
        StateError: a value is not finite.
    """
    if not np.isfinite(values).all():
        refuse(
            where,
            found="values that are not finite",
            expected="finite numbers",
            fix="Use an adapter from a run that did not diverge.",
        )


def shown(name: str) -> str:
    """Return a name of an untrusted file in a form that fits into a one-line message."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else repr(name)[:_LONGEST_NAME]


def check_names(
    path: Path,
    names: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    key: Callable[[str], str],
) -> None:
    """Refuse a file with missing or unexpected tensors.

    Args:
        path: the file. names: names in the file by state tensor, or by themselves if unknown.
        shapes: shapes of the state tensors. key: maps a state tensor to its name in the file.

    Raises:
        StateError: a tensor is missing or unexpected.
    """
    for wrong, found in (
        ([key(slot) for slot in shapes if slot not in names], "no"),
        ([name for slot, name in names.items() if slot not in shapes], "also"),
    ):
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            modules = slot_modules(shapes)
            refuse(
                f"{path}",
                found=f"{found} {shown(wrong[0])}{more}",
                expected=f"the {len(modules)} layers that the bundle adapts, such as {modules[0]}",
                fix="Compile with the adapter's layers (lora.target_modules and lora.layers_to_transform).",
            )


def _read_tensors(path: Path, layout: Layout) -> dict[str, Array]:
    """Read all tensors by their names in the file, float32."""
    import safetensors

    library: Any = safetensors  # its functions carry no types
    try:
        content = path.read_bytes()
        tensor_file.check(content)
        entries = library.deserialize(content)
    except (OSError, library.SafetensorError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise StateError(
            f"{path}",
            found=reason.lower() if reason else f"a damaged file ({first_line(error)})",
            expected=f"the weights of an adapter of {layout.tool}",
            fix="Export the adapter again, with safetensors.",
        ) from error
    return {name: _array(path, name, entry) for name, entry in entries}


def _array(path: Path, name: str, entry: dict[str, Any]) -> Array:
    # safetensors' numpy reader has no bfloat16: it is the upper half of a float32.
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
    kind = entry["dtype"]
    if kind not in kinds:
        refuse(
            f"{path}, {name}",
            found=f"the type {kind}",
            expected="one of " + ", ".join(kinds),
            fix="Save the adapter in a floating-point type.",
        )
    values = np.frombuffer(entry["data"], dtype=kinds[kind])
    if kind == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32).reshape(entry["shape"])


def refuse(where: str, *, found: str, expected: str, fix: str) -> NoReturn:
    """Raise the :class:`StateError` of an adapter that cannot be used."""
    raise StateError(where, found=found, expected=expected, fix=fix)
