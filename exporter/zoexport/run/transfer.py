"""``adapter export`` and ``adapter import``: convert between state tensors and files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters import FORMATS, adapter_format, format_of
from zoexport.core.errors import ConfigError, nearest
from zoexport.core.files import atomic_folder, refuse_existing
from zoexport.methods import config_of
from zoexport.run.results import Exported, Imported
from zoexport.run.states import attach
from zoexport.session import Bundle, Session, no_programs
from zoexport.trained import DTYPES, MERGED, Output, Slots, Trained, kind_of, kinds
from zoexport.trained.model_files import save_model

_MODELS = (MERGED, "hf")
"""The formats that are whole models."""


def export_adapter(
    bundle: Bundle,
    output: Path,
    *,
    state: Path | None,
    kind: str | None,
    outtype: str | None,
    dtype: str | None,
    model: str | None,
    force: bool,
    last: bool,
) -> Exported:
    """See :meth:`zoexport.Bundle.export_adapter`; the pending update is applied."""
    trained = kind_of(config_of(bundle.manifest))
    kind = _format(bundle, trained, kind)
    _check_options(kind, outtype, dtype, model)
    refuse_existing(output, replace=force)
    with bundle.session(engine=no_programs) as session:
        initial = _values(session) if kind == "sparse" else {}
        steps = 0 if state is None else attach(session, state, last=last)
        slots = _values(session)
    wanted = Output(kind, output, force, outtype, dtype, model)
    if kind == MERGED:
        write_merged(trained, wanted, slots, bundle)
    else:
        trained.write(wanted, slots, initial, bundle)
    files = list(output.iterdir()) if output.is_dir() else [output]
    return Exported(output, kind, steps, len(slots), sum(path.stat().st_size for path in files))


def import_adapter(
    bundle: Bundle, adapter: Path, *, state: Path, kind: str | None, force: bool
) -> Imported:
    """See :meth:`zoexport.Bundle.import_adapter`."""
    kind, _ = _readable(bundle, adapter, kind)
    with (
        atomic_folder(state, replace=force) as folder,
        bundle.session(engine=no_programs) as session,
    ):
        session.attach(folder)
        for name, values in read_adapter(session, bundle, adapter, kind).items():
            session.write_slot(name, values)
        session.save()
        count = len(_values(session))
    return Imported(state, kind, count)


def read_adapter(session: Session, bundle: Bundle, adapter: Path, kind: str | None = None) -> Slots:
    """Read an adapter's files as state tensors with the dtypes and shapes of an open session.

    Args:
        bundle: bundle of the session. adapter, kind: see :func:`import_adapter`.

    Raises:
        ZoExportError: the adapter does not fit.
    """
    kind, trained = _readable(bundle, adapter, kind)
    return trained.read(kind, adapter, _values(session), bundle)


def write_merged(trained: Trained, output: Output, slots: Slots, bundle: Bundle) -> None:
    """Write the trained model atomically as a new folder that transformers loads.

    Its weights are those that the session computes with: linear layers and token embedding as
    quantized in the bundle, plus the trained values. Its losses equal the session's, except for
    quantized activations. The original model is read again and its weights are rounded as in
    compiling: bundles store weights in an engine's layout, or inside a program of the model.

    Raises:
        ModelError: the original model cannot be loaded, or differs.
        ConfigError: the folder exists and ``output.replace`` is off, or the place cannot be written.
    """
    from zoexport.models import load_original

    loaded = load_original(bundle.manifest, output.model)
    # If the kind freezes another model than the original, use the frozen one.
    trained.for_reference(loaded.model, bundle)
    round_weights(loaded.model, bundle.settings, bundle.manifest["rotated_weights"])
    trained.merge(loaded.model, slots, bundle)
    save_model(output, loaded)


def round_weights(model: Any, settings: Mapping[str, Any], rotated: Collection[str]) -> None:
    """Round linear weights and the token embedding like a bundle with these settings.

    Args:
        model: a transformers model, fp32.
        settings: ``weights``, ``activations`` and ``group_size`` of the manifest.
        rotated: names of the parameters that the bundle stores rotated (``core.hadamard``).
    """
    from zoexport.core import hadamard
    from zoexport.methods.reference.quantized import rounded, stored_weights

    if settings["weights"] == "fp32":
        return
    for weight, turns in stored_weights(model, settings["weights"], rotated).values():
        # A rotation is its own inverse: round as stored, then rotate back for the layer's inputs.
        values = rounded(hadamard.rotate_rows(weight) if turns else weight, settings)
        weight.copy_(hadamard.rotate_rows(values) if turns else values)


def _readable(bundle: Bundle, adapter: Path, kind: str | None) -> tuple[str, Trained]:
    """Return the format of files, and the kind of training that reads it."""
    trained = kind_of(config_of(bundle.manifest))
    kind = _format(bundle, trained, kind or format_of(adapter) or trained.readable[0])
    if kind not in trained.readable:
        raise ConfigError(
            f"adapter format {kind!r}",
            found="a whole model",
            expected=f"the {trained.words} alone",
            fix=f"Import what `zoexport adapter export --format {trained.formats[0]}` wrote.",
        )
    return kind, trained


def _format(bundle: Bundle, trained: Trained, kind: str | None) -> str:
    if kind is None or kind in trained.formats:
        return kind or trained.formats[0]
    known = {name for other in kinds.names() for name in kinds.get(other).formats}
    if kind not in known:
        adapter_format(kind)  # says which there are, before anything is opened
    raise ConfigError(
        f"adapter format {kind!r}",
        found=f"a bundle of {bundle.method}, which trains {trained.words}",
        expected="one of " + ", ".join(trained.formats),
        fix="Choose one of them."
        if kind not in FORMATS
        else f"Use --format {MERGED}: there is no adapter, and it writes a whole model.",
    )


def _check_options(kind: str, outtype: str | None, dtype: str | None, model: str | None) -> None:
    if outtype is not None:
        if kind in FORMATS:
            adapter_format(kind, outtype)
        else:
            raise ConfigError(
                f"outtype {outtype!r}",
                found=f"the format {kind!r}",
                expected="gguf, whose numbers have several types",
                fix="Leave --outtype out.",
            )
    if dtype is not None and (dtype not in DTYPES or kind not in _MODELS):
        known = dtype in DTYPES
        raise ConfigError(
            f"dtype {dtype!r}",
            found=f"the format {kind!r}" if known else "no such type",
            expected="merged or hf, which write a whole model"
            if known
            else "one of " + ", ".join(DTYPES),
            fix="Leave --dtype out." if known else f"Choose one of them.{nearest(dtype, DTYPES)}",
        )
    if model is not None and kind not in _MODELS:
        raise ConfigError(
            f"model {model!r}",
            found=f"the format {kind!r}, which takes nothing from the original model",
            expected=f"{MERGED}, or hf of chosen or all weights",
            fix="Leave --model out.",
        )


def _values(session: Session) -> dict[str, NDArray[Any]]:
    """Return all state tensors except tables: float32, or packed integers."""
    return {
        slot.name: np.frombuffer(session.read_slot(slot.name), slot.passed).reshape(slot.shape)
        for slot in session.slots()
        if slot.role == "trainable" or slot.passed == "float32"
    }
