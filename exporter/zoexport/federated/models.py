"""The model that a federation trains: the values of a bundle's trainable slots, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from zoexport.core import tensor_file
from zoexport.core.errors import ConfigError, StateError, first_line
from zoexport.core.files import atomic_file
from zoexport.session import Bundle, Session, SlotInfo, no_programs

#: Flat float32 values by parameter name; exact for float16 parameters, too.
Model = dict[str, NDArray[np.float32]]


def trained_slots(session: Session) -> list[SlotInfo]:
    """Return the slots that a federation averages, in the manifest's order.

    Raises:
        ConfigError: they are integers, whose average is none.
    """
    slots = [slot for slot in session.slots() if slot.role == "trainable"]
    for slot in slots:
        if slot.passed != "float32":
            raise ConfigError(
                f"slot {slot.name}",
                found=f"integers ({slot.dtype}) that the method {session.info.method} trains",
                expected="values of floating point, as the mean of clients' integers lies between integers",
                fix="Compile the bundle with another method, such as prge, mezo or senszoq.",
            )
    return slots


def initial(bundle: Bundle) -> Model:
    """Version 0: the values that the bundle has.

    Raises:
        ZoExportError: the bundle cannot be used, or trains integers.
    """
    with bundle.session(engine=no_programs) as session:
        return read(session, trained_slots(session))


def read(session: Session, slots: list[SlotInfo]) -> Model:
    """Return a session's values, the pending update applied."""
    return {slot.name: np.frombuffer(session.read_slot(slot.name), np.float32) for slot in slots}


def write(session: Session, model: Model) -> None:
    """Make a model the initial values of a session that has taken no step."""
    for name, values in model.items():
        session.write_slot(name, np.ascontiguousarray(values, np.float32))


def digest(model: Mapping[str, NDArray[np.float32]]) -> str:
    """Return the SHA-256 of names and values; equal for bitwise identical models."""
    found = hashlib.sha256()
    for name in sorted(model):
        values = np.ascontiguousarray(model[name], "<f4")
        found.update(f"{name} {values.size}\n".encode())
        found.update(values.tobytes())
    return found.hexdigest()


def finite(model: Model) -> bool:
    """Return whether all values are finite."""
    return all(bool(np.isfinite(values).all()) for values in model.values())


def pack(model: Model) -> bytes:
    """Return a model as safetensors."""
    return save({name: np.ascontiguousarray(values, np.float32) for name, values in model.items()})


def unpack(content: bytes, like: Mapping[str, int], where: str) -> Model:
    """Return the model that :func:`pack` wrote.

    Args:
        content: the bytes.
        like: the slots and their numbers of values.
        where: for messages.

    Raises:
        StateError: it is something else, or of other slots.
    """
    try:
        tensor_file.check(content)
        found = {name: values.reshape(-1) for name, values in load(content).items()}
        sizes = {name: values.size for name, values in found.items()}
        floats = all(values.dtype == np.float32 for values in found.values())
        if sizes != dict(like) or not floats:
            raise ValueError("other slots")
    except Exception as error:  # safetensors has exceptions of its own
        raise StateError(
            where,
            found=f"no model of this bundle ({first_line(error)})",
            expected="float32 values of " + ", ".join(like),
            fix="Use the same bundle on all sides.",
        ) from error
    return found


def sizes_of(model: Model) -> dict[str, int]:
    """Return each slot's number of values."""
    return {name: values.size for name, values in model.items()}


def keep(path: Path, model: Model) -> None:
    """Write a model, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(pack(model))


def pack_values(losses: NDArray[np.float32], model: Model) -> bytes:
    """Return a reply of values: the losses of the steps, and the model."""
    return losses.astype("<f4").tobytes() + pack(model)


def unpack_values(
    content: bytes, steps: int, like: Mapping[str, int]
) -> tuple[NDArray[np.float32], Model]:
    """Unpack the losses and the model that :func:`pack_values` wrote.

    Raises:
        StateError: it is something else.
    """
    size = 4 * steps
    losses = np.frombuffer(content[:size].ljust(size, b"\0"), "<f4").astype(np.float32)
    return losses, unpack(content[size:], like, "a reply's values")
