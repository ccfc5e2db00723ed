"""Inner values of a bundle's program, to find the first operator at which an accelerator deviates.

A bundle contains lowered programs, whose inner values cannot be read. The program is therefore made
again from the original model and the bundle's settings, with inner results as outputs, and compared
with PyTorch on the same inputs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from zoexport import models
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder
from zoexport.core.progress import Progress
from zoexport.core.target import InnerValue
from zoexport.session import Bundle

_LARGEST = 6e4
"""Largest value compared.

Larger ones are the masks' replacement of minus infinity, which exceed fp16.
"""


def compare_inner(
    bundle: Bundle,
    program: str,
    *,
    model: str | None = None,
    dump: Path | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Run a program of a bundle on its accelerator, or its emulation, and in PyTorch, and compare every result.

    Args:
        bundle: bundle for a target with inner values. program: program of the whole model, such as
            ``train``.
        model: path or hub id of the original model, if it has moved since compilation.
        dump: folder for the values of both sides, as safetensors.
        progress: see ``core.progress.Progress``.

    Returns:
        ``program``; ``values``, in the order of computation: ``name``, ``operator``, ``shape``, the ``largest``
        magnitude in PyTorch, and ``error``, the largest of each entry of the first dimension over that magnitude.

    Raises:
        ConfigError: the target has no inner values, or the bundle has no such program of the whole
            model.
        ZoExportError: the bundle or the model cannot be used, or the program is refused.
    """
    bundle.verify()
    manifest = bundle.manifest
    given = {name: value for name, value in bundle.settings.items() if value is not None}
    planned = plan(manifest["method"], manifest["target"], given)
    if not planned.target.shows_inner_values:
        raise ConfigError(
            f"bundle {bundle.path}",
            found=f"target {manifest['target']}",
            expected="a target that shows what its delegates compute: android-npu",
            fix="Leave --inner out; parity compares losses and states on every target.",
        )
    names = [] if "stages" in manifest else [entry["name"] for entry in manifest["programs"]]
    if program not in names:
        raise ConfigError(
            f"bundle {bundle.path}",
            found=f"program {program}",
            expected=f"a program of the whole model: {', '.join(names) or 'it has none'}",
            fix="Choose one of these, or compile with granularity=model.",
        )
    progress("loading the original model", None)
    loaded = models.load_original(manifest, model)
    graph = training_graph(planned, loaded.model, progress, source=loaded.weights)
    progress(f"running {program}", None)
    pairs = planned.target.inner_values(graph, planned.config, program)
    if dump is not None:
        with atomic_folder(dump) as folder:
            for side in ("reference", "computed"):
                tensors = {pair.name: getattr(pair, side).contiguous() for pair in pairs}
                save_file(tensors, folder / f"{program}.{side}.safetensors")
    return {"program": program, "values": [_described(pair) for pair in pairs]}


def _described(pair: InnerValue) -> dict[str, Any]:
    counted = pair.reference.abs() < _LARGEST
    errors = (pair.computed - pair.reference).abs().where(counted, 0.0)
    largest = float(pair.reference.abs().where(counted, 0.0).max())
    rows = errors.reshape(len(errors), -1).amax(1) if errors.dim() else errors.reshape(1)
    return {
        "name": pair.name,
        "operator": pair.operator,
        "shape": list(pair.reference.shape),
        "largest": largest,
        "error": [_relative(float(error), largest) for error in rows],
    }


def _relative(error: float, largest: float) -> float:
    return error / largest if largest else math.inf if error else 0.0
