"""Bundles of the variants: compiled once, kept in a folder under what decides their content."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoexport.bench.matrix import Variant
from zoexport.build import plan
from zoexport.compiler_digest import compiler_digest
from zoexport.core import manifest as manifests
from zoexport.core.children import child, last_line, python
from zoexport.core.config import as_dict
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.types import Progress

_OF_THE_GRID = {
    "seq_len": "--seq-len",
    "batch": "--batch",
    "queries": "--queries",
    "weights": "--weights",
    "lora.layers": "--layers",
    "lora.targets": "--targets",
    "split": "--split",
    "keep_mb": "--keep-mb",
}


def check(variants: Sequence[Variant], target: str, settings: Mapping[str, str]) -> None:
    """Plan every bundle before anything heavy begins.

    Raises:
        ConfigError: a setting that the matrix has an option for, or one that cannot be used.
    """
    for key in settings:
        if key in _OF_THE_GRID:
            raise ConfigError(
                f"setting {key!r}",
                found="--set",
                expected=f"{_OF_THE_GRID[key]}, which takes several values",
                fix=f"Write {_OF_THE_GRID[key]} {settings[key]}.",
            )
    for variant in variants:
        plan(variant.method, target, {**settings, **variant.settings()})


def bundle_of(
    variant: Variant,
    *,
    model: str,
    model_sha256: str,
    target: str,
    settings: Mapping[str, str],
    folder: Path,
    progress: Progress,
) -> Path:
    """The variant's bundle, compiled now where the folder has none.

    Args:
        model: a MODEL argument. model_sha256: of its weights.
        target, settings: for ``compile``.
        folder: where bundles are kept.
        progress: called while a compilation runs; it takes minutes.

    Raises:
        ZoExportError: what ``compile`` said.
    """
    chosen = {**settings, **variant.settings()}
    planned = plan(variant.method, target, chosen)
    content = {
        "model": model_sha256,
        "method": planned.method.name,
        "target": target,
        "settings": as_dict(planned.config),
        "compiler": compiler_digest(),
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    bundle = folder / f"{planned.method.name}-{variant.weights}-{digest[:16]}"
    try:
        manifests.read(bundle)
        return bundle
    except BundleError:  # not there, or damaged
        pass
    progress(f"compiling {variant.method} {variant.weights}, {variant.shape}", None)
    compile_apart(bundle, model, planned.method.name, target, chosen)
    return bundle


def compile_apart(
    bundle: Path, model: str, method: str, target: str, settings: Mapping[str, str]
) -> None:
    """``compile`` in a process of its own; a bundle that is there is replaced.

    Raises:
        ZoExportError: what ``compile`` said.
    """
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    arguments = ("compile", model, "--method", method, "--target", target, *sets)
    # In a process of its own, so that what the compiler leaves in memory is gone when steps are measured.
    command, environment = python("zoexport", *arguments, "-o", bundle, "--force", "--json")
    with (
        tempfile.TemporaryFile() as log,
        child(command, errors=log, environment=environment) as process,
    ):
        output, _ = process.communicate()
        said = last_line(log)
    try:
        result = json.loads(output)
    except ValueError:  # killed
        result = {
            "error": {
                "where": f"bundle {bundle}",
                "found": f"a compiler that ended with status {process.returncode} ({said})",
                "expected": "a compiled bundle",
                "fix": "Where memory was short, close other programs. Run the same command again to go on.",
            }
        }
    if "error" in result:
        parts = {key: result["error"][key] for key in ("found", "expected", "fix")}
        raise ZoExportError(result["error"]["where"], **parts)
