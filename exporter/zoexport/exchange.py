"""``adapter export`` and ``adapter import``: between a session's slots and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters import FORMATS, adapter_format, read_settings
from zoexport.core import manifest as manifests
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder
from zoexport.session import Session

if TYPE_CHECKING:
    from zoexport.adapters.chosen import Places

_OF_CHOSEN = ("sparse", "hf")
"""The formats of bundles that train chosen weights; the first is the default."""


def export_adapter(
    bundle: Path, *, state: Path | None, kind: str | None, output: Path, force: bool
) -> dict[str, Any]:
    """Write what a state has trained, the pending update applied, or the bundle's initial values.

    Args:
        bundle: the bundle's folder.
        state: the state's folder.
        kind: the name of a format; None: peft of adapters, sparse of chosen weights.
        output: the folder to create.
        force: replace ``output`` where it exists.

    Returns:
        The keys of ``adapter export --json``: adapter, format, steps, tensors, bytes.

    Raises:
        ZoExportError: something cannot be used; nothing is written.
    """
    manifest = manifests.read(bundle)
    kind = _kind(manifest, kind)
    with Session.open(bundle) as session:
        initial = _values(session) if kind == "sparse" else {}
        if state is not None:
            session.attach(state, read_only=True)
        slots = _values(session)
        steps = session.info.steps
    if kind in _OF_CHOSEN:
        _write_chosen(bundle, manifest, kind, slots, initial, output, replace=force)
    else:
        adapter_format(kind).write(slots, read_settings(bundle), output, replace=force)
    return {
        "adapter": str(output),
        "format": kind,
        "steps": steps,
        "tensors": len(slots),
        "bytes": sum(path.stat().st_size for path in output.iterdir()),
    }


def import_adapter(
    bundle: Path, *, adapter: Path, kind: str | None, state: Path, force: bool
) -> dict[str, Any]:
    """Create a state that starts from an adapter, or from chosen weights.

    Args:
        bundle: the bundle's folder.
        adapter: the adapter's folder.
        kind: the name of its format; None: see :func:`export_adapter`.
        state: the state's folder to create.
        force: replace ``state`` where it exists.

    Returns:
        The keys of ``adapter import --json``: state, format, tensors.

    Raises:
        ZoExportError: the adapter does not fit, or ``state`` exists; nothing is written.
    """
    manifest = manifests.read(bundle)
    kind = _kind(manifest, kind)
    if kind == "hf":
        raise ConfigError(
            "adapter format 'hf'",
            found="a whole model",
            expected="the chosen weights alone",
            fix="Import what `zoexport adapter export --format sparse` wrote.",
        )
    with atomic_folder(state, replace=force) as folder, Session.open(bundle) as session:
        session.attach(folder)
        shapes = {slot.name: slot.shape for slot in session.slots()}
        if kind == "sparse":
            from zoexport.adapters.chosen import read_sparse

            (name,) = shapes
            found = {name: read_sparse(adapter, _places(bundle, manifest), manifest)}
        else:
            found = adapter_format(kind).read(adapter, shapes, read_settings(bundle))
        for name, values in found.items():
            session.write_slot(name, values)
        session.save()
    return {"state": str(state), "format": kind, "tensors": len(shapes)}


def _kind(manifest: Mapping[str, Any], kind: str | None) -> str:
    known = _OF_CHOSEN if "chosen" in manifest else tuple(FORMATS)
    if kind is None:
        return known[0]
    if kind not in known and ("chosen" in manifest or kind in _OF_CHOSEN):
        trained = "chosen weights" if "chosen" in manifest else "an adapter"
        raise ConfigError(
            f"adapter format {kind!r}",
            found=f"a bundle of {manifest['method']}, which trains {trained}",
            expected="one of " + ", ".join(known),
            fix="Choose one of them.",
        )
    if kind not in known:
        adapter_format(kind)  # says which there are, before anything is opened
    return kind


def _values(session: Session) -> dict[str, NDArray[Any]]:
    return {
        slot.name: np.frombuffer(session.read_slot(slot.name), slot.passed).reshape(slot.shape)
        for slot in session.slots()
    }


def _places(bundle: Path, manifest: dict[str, Any]) -> Places:
    from zoexport.chosen import places_of

    return {name: places.numpy() for name, places in places_of(bundle, manifest).items()}


def _write_chosen(
    bundle: Path,
    manifest: dict[str, Any],
    kind: str,
    slots: Mapping[str, NDArray[np.float32]],
    initial: Mapping[str, NDArray[np.float32]],
    output: Path,
    *,
    replace: bool,
) -> None:
    from zoexport.adapters.chosen import write_merged, write_sparse

    (name,) = slots
    places = _places(bundle, manifest)
    if kind == "sparse":
        write_sparse(output, places, slots[name], initial[name], manifest, replace=replace)
        return
    from zoexport.models import load_original

    write_merged(output, places, slots[name], load_original(manifest), replace=replace)
