"""``adapter export`` and ``adapter import``: between a session's slots and an adapter's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters import adapter_format, read_settings
from zoexport.core.files import atomic_folder
from zoexport.session import Session


def export_adapter(
    bundle: Path, *, state: Path | None, kind: str, output: Path, force: bool
) -> dict[str, Any]:
    """Write the adapter of a state, the pending update applied, or the bundle's initial one.

    Args:
        bundle: the bundle's folder.
        state: the state's folder.
        kind: the name of a format.
        output: the folder to create.
        force: replace ``output`` where it exists.

    Returns:
        The keys of ``adapter export --json``: adapter, format, steps, tensors, bytes.

    Raises:
        ZoExportError: something cannot be used; nothing is written.
    """
    form = adapter_format(kind)
    settings = read_settings(bundle)
    with Session.open(bundle) as session:
        if state is not None:
            session.attach(state, read_only=True)
        slots = {
            slot.name: np.frombuffer(session.read_slot(slot.name), np.float32).reshape(slot.shape)
            for slot in session.slots()
        }
        steps = session.info.steps
    form.write(slots, settings, output, replace=force)
    return {
        "adapter": str(output),
        "format": kind,
        "steps": steps,
        "tensors": len(slots),
        "bytes": sum(path.stat().st_size for path in output.iterdir()),
    }


def import_adapter(
    bundle: Path, *, adapter: Path, kind: str, state: Path, force: bool
) -> dict[str, Any]:
    """Create a state that starts from an adapter.

    Args:
        bundle: the bundle's folder.
        adapter: the adapter's folder.
        kind: the name of its format.
        state: the state's folder to create.
        force: replace ``state`` where it exists.

    Returns:
        The keys of ``adapter import --json``: state, format, tensors.

    Raises:
        ZoExportError: the adapter does not fit, or ``state`` exists; nothing is written.
    """
    form = adapter_format(kind)
    settings = read_settings(bundle)
    with atomic_folder(state, replace=force) as folder, Session.open(bundle) as session:
        session.attach(folder)
        shapes = {slot.name: slot.shape for slot in session.slots()}
        for name, values in form.read(adapter, shapes, settings).items():
            session.write_slot(name, values)
        session.save()
    return {"state": str(state), "format": kind, "tensors": len(shapes)}
