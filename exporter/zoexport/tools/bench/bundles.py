"""Bundles of the variants: compiled once, kept in a folder under what decides their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoexport.compiler.digest import compiler_digest
from zoexport.compiler.plan import plan
from zoexport.core.children import child, last_line, python
from zoexport.core.config import as_dict
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.fetch import cache_dir
from zoexport.core.files import atomic_file
from zoexport.core.memory import anonymous_peak
from zoexport.core.progress import Progress
from zoexport.session import Bundle
from zoexport.tools.bench.matrix import Variant

_OF_THE_GRID = {
    "max_length": "--max-length",
    "batch_size": "--batch-size",
    "num_queries": "--num-queries",
    "weights": "--weights",
    "lora.layers_to_transform": "--layers",
    "lora.target_modules": "--targets",
    "activation_cache_mb": "--keep-mb",
}


@dataclasses.dataclass(frozen=True)
class Compiling:
    """Cost of compiling a bundle.

    Attributes:
        processor_seconds: CPU time of all threads; other load on the machine changes it little.
        peak_anonymous_mb: peak anonymous memory in MB; None if it is unavailable.
    """

    seconds: float
    processor_seconds: float
    peak_anonymous_mb: float | None


def work_folder(given: Path | None = None) -> Path:
    """Return the folder of bundles and unfinished measurements: ``given``, or in the cache."""
    return given or cache_dir() / "bench"


def kept_in(work: Path) -> Path:
    """Return the folder of the bundles, each by the name that ``bench --json`` has."""
    return work / "bundles"


def compiling(bundle: Path) -> Compiling | None:
    """Return the compilation cost that :func:`bundle_of` stored; None for other bundles."""
    try:
        return Compiling(**json.loads(_figures(bundle).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _figures(bundle: Path) -> Path:
    return bundle.with_name(f"{bundle.name}.compiling.json")


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
    """Return the variant's bundle; compile it if the folder lacks it.

    Args:
        model: a MODEL argument. model_sha256: hash of its weights.
        target, settings: arguments of ``compile``.
        folder: folder of the bundles.
        progress: called while a compilation runs; it takes minutes.

    Raises:
        ZoExportError: the error of ``compile``.
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
        return Bundle.open(bundle).path
    except BundleError:  # not there, or damaged
        pass
    progress(f"compiling {variant.method} {variant.weights}, {variant.shape}", None)
    took = compile_apart(bundle, model, planned.method.name, target, chosen)
    with atomic_file(_figures(bundle)) as temporary:
        temporary.write_text(json.dumps(dataclasses.asdict(took)), encoding="utf-8")
    return bundle


def compile_apart(
    bundle: Path, model: str, method: str, target: str, settings: Mapping[str, str]
) -> Compiling:
    """``compile`` in a process of its own; a bundle that is there is replaced.

    Raises:
        ZoExportError: what ``compile`` said.
    """
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    arguments = ("compile", model, "--method", method, "--target", target, *sets)
    # A separate process, so that no memory of the compiler remains when steps are measured.
    command, environment = python("zoexport", *arguments, "-o", bundle, "--force", "--json")
    begin, before = time.monotonic(), _processor_seconds()
    with (
        tempfile.TemporaryFile() as log,
        child(command, errors=log, environment=environment) as process,
        anonymous_peak(process.pid) as peak,
    ):
        output, _ = process.communicate()
        said = last_line(log)
    took = Compiling(
        round(time.monotonic() - begin, 1), round(_processor_seconds() - before, 1), peak()
    )
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
    return took


def _processor_seconds() -> float:
    """Return the CPU time of child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
