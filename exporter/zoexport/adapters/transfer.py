"""``adapter export`` and ``adapter import``: between a session's slots and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters import FORMATS, adapter_format, read_settings
from zoexport.core import manifest as manifests
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder
from zoexport.session import Session

Slots = Mapping[str, NDArray[Any]]


class _Exchange(Protocol):
    """Between what a bundle trains and files.

    Attributes:
        trained: what that is, in words. formats: the default first. readable: those that can be imported.
    """

    trained: str
    formats: tuple[str, ...]
    readable: tuple[str, ...]

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        """Write slots as a new folder; ``initial`` are the bundle's."""

    def read(self, kind: str, adapter: Path, own: Slots) -> Slots:
        """The slots to begin with; ``own`` are the bundle's."""


class _Adapters:
    """LoRA adapters."""

    trained = "an adapter"

    def __init__(self, bundle: Path) -> None:
        self.bundle = bundle
        self.formats = self.readable = tuple(FORMATS)

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        adapter_format(kind).write(slots, read_settings(self.bundle), output, replace=replace)

    def read(self, kind: str, adapter: Path, own: Slots) -> Slots:
        shapes = {name: values.shape for name, values in own.items()}
        return adapter_format(kind).read(adapter, shapes, read_settings(self.bundle))


class _Chosen:
    """Chosen elements of the weights, one slot for all."""

    trained = "chosen weights"
    formats: tuple[str, ...] = ("sparse", "hf")
    readable: tuple[str, ...] = ("sparse",)

    def __init__(self, bundle: Path, manifest: dict[str, Any]) -> None:
        from zoexport.sensitivity.places import places_of

        self.manifest = manifest
        self.places = {name: p.numpy() for name, p in places_of(bundle, manifest).items()}

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        from zoexport.adapters.chosen import write_merged, write_sparse

        ((name, values),) = slots.items()
        if kind == "sparse":
            write_sparse(output, self.places, values, initial[name], self.manifest, replace=replace)
            return
        from zoexport.models import load_original

        write_merged(output, self.places, values, load_original(self.manifest), replace=replace)

    def read(self, kind: str, adapter: Path, own: Slots) -> Slots:
        from zoexport.adapters.chosen import read_sparse

        (name,) = own
        return {name: read_sparse(adapter, self.places, self.manifest)}


class _Integers:
    """The integers of quantized weights, a slot for each."""

    trained = "quantized weights"
    formats: tuple[str, ...] = ("quantized", "hf")
    readable: tuple[str, ...] = ("quantized",)

    def __init__(self, bundle: Path, manifest: dict[str, Any]) -> None:
        self.bundle, self.manifest = bundle, manifest

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        from zoexport.adapters.integers import write_dequantized, write_quantized

        parts = self._parts(slots)
        if kind == "quantized":
            write_quantized(output, parts, self.manifest, replace=replace)
            return
        from zoexport.models import load_original

        write_dequantized(output, parts, load_original(self.manifest), replace=replace)

    def read(self, kind: str, adapter: Path, own: Slots) -> Slots:
        from zoexport.adapters.integers import CODES, read_quantized

        codes = read_quantized(adapter, self._parts(own), self.manifest)
        return {f"{name}{CODES}": values.numpy() for name, values in codes.items()}

    def _parts(self, slots: Slots) -> Any:
        from zoexport.adapters.integers import parts_of, scales_of

        return parts_of(scales_of(self.bundle, self.manifest), slots)


class _QuantizedAdapters(_Integers):
    """The integers of adapters, which leave as the numbers that they stand for, or as they are."""

    trained = "quantized adapters"
    formats = (*FORMATS, "quantized")

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        if kind == "quantized":
            super().write(kind, slots, initial, output, replace=replace)
            return
        from zoexport.adapters.integers import adapters_of

        adapters = adapters_of(self._parts(slots))
        adapter_format(kind).write(adapters, read_settings(self.bundle), output, replace=replace)


class _Weights:
    """The model's own weights, a slot for each parameter: they leave and come as a whole model."""

    trained = "the model's weights"
    formats: tuple[str, ...] = ("hf",)
    readable: tuple[str, ...] = ("hf",)

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest

    def write(
        self, kind: str, slots: Slots, initial: Slots, output: Path, *, replace: bool
    ) -> None:
        from zoexport.adapters.weights import write_weights
        from zoexport.models import load_original

        write_weights(output, slots, load_original(self.manifest), replace=replace)

    def read(self, kind: str, adapter: Path, own: Slots) -> Slots:
        from zoexport.adapters.weights import read_weights

        return read_weights(adapter, {name: values.shape for name, values in own.items()})


def export_adapter(
    bundle: Path, *, state: Path | None, kind: str | None, output: Path, force: bool
) -> dict[str, Any]:
    """Write what a state has trained, the pending update applied, or the bundle's initial values.

    Args:
        bundle: the bundle's folder.
        state: the state's folder.
        kind: the name of a format; None: peft of adapters, sparse of chosen weights, quantized of integers, hf of all
            weights.
        output: the folder to create.
        force: replace ``output`` where it exists.

    Returns:
        The keys of ``adapter export --json``: adapter, format, steps, tensors, bytes.

    Raises:
        ZoExportError: something cannot be used; nothing is written.
    """
    manifest = manifests.read(bundle)
    exchange = _exchange(bundle, manifest)
    kind = _kind(manifest, exchange, kind)
    with Session.open(bundle) as session:
        initial = _values(session) if kind == "sparse" else {}
        if state is not None:
            session.attach(state, read_only=True)
        slots = _values(session)
        steps = session.info.steps
    exchange.write(kind, slots, initial, output, replace=force)
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
    """Create a state that starts from what :func:`export_adapter` wrote, or from another tool's adapter.

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
    exchange = _exchange(bundle, manifest)
    kind = _kind(manifest, exchange, kind)
    if kind not in exchange.readable:
        raise ConfigError(
            f"adapter format {kind!r}",
            found="a whole model",
            expected=f"the {exchange.trained} alone",
            fix=f"Import what `zoexport adapter export --format {exchange.formats[0]}` wrote.",
        )
    with atomic_folder(state, replace=force) as folder, Session.open(bundle) as session:
        session.attach(folder)
        own = _values(session)
        for name, values in exchange.read(kind, adapter, own).items():
            session.write_slot(name, values)
        session.save()
    return {"state": str(state), "format": kind, "tensors": len(own)}


def _exchange(bundle: Path, manifest: dict[str, Any]) -> _Exchange:
    if "chosen" in manifest:
        return _Chosen(bundle, manifest)
    if "grid" in manifest:
        full = manifest["settings"]["train"] == "full"
        return (_Integers if full else _QuantizedAdapters)(bundle, manifest)
    if manifest["settings"].get("train") == "full":
        return _Weights(manifest)
    return _Adapters(bundle)


def _kind(manifest: Mapping[str, Any], exchange: _Exchange, kind: str | None) -> str:
    if kind is None or kind in exchange.formats:
        return kind or exchange.formats[0]
    if isinstance(exchange, _Adapters) and kind not in (*_Chosen.formats, *_Integers.formats):
        adapter_format(kind)  # says which there are, before anything is opened
    raise ConfigError(
        f"adapter format {kind!r}",
        found=f"a bundle of {manifest['method']}, which trains {exchange.trained}",
        expected="one of " + ", ".join(exchange.formats),
        fix="Choose one of them.",
    )


def _values(session: Session) -> dict[str, NDArray[Any]]:
    """Every slot but tables: float32, or the slot's integers as they are packed."""
    return {
        slot.name: np.frombuffer(session.read_slot(slot.name), slot.passed).reshape(slot.shape)
        for slot in session.slots()
        if slot.role == "trainable" or slot.passed == "float32"
    }
