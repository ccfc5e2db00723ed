"""Bundles in the cache, compiled in a child process to free its memory before training.

``python -m zoexport.compiler.cached`` reads the arguments of :func:`cached_bundle` as one JSON object from standard
input. It writes one JSON object per line to standard output: ``phase`` and ``done`` for progress, then ``bundle`` or
``error``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.core import children
from zoexport.core.errors import BundleError, ModelError, ZoExportError, rebuilt
from zoexport.core.fetch import cache_dir
from zoexport.core.files import only_writer
from zoexport.core.progress import Notice, Progress
from zoexport.core.trust import ANYONE
from zoexport.core.version import __version__


def cached_bundle(
    model: str,
    *,
    method: str | None,
    target: str,
    settings: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """Return the bundle of a model, method, target and settings, compiled unless the cache has it.

    Args:
        model, method, target, settings: of :func:`zoexport.compiler.build.compile_bundle`.
        progress: called with the name of each phase.

    Raises:
        ZoExportError: the error of the compilation; nothing is written.
    """
    command, environment = children.python("zoexport.compiler.cached")
    asked = {"model": model, "method": method, "target": target, "settings": dict(settings)}
    with (
        tempfile.TemporaryFile() as errors,
        children.child(
            command, stdin=subprocess.PIPE, errors=errors, environment=environment
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "error" in message:
                raise rebuilt(message["error"])
            if "bundle" in message:
                return Path(message["bundle"])
            phase = message["phase"]
            progress(Notice(phase) if message["notice"] else phase, message["done"])
        process.wait()
        raise ModelError(
            f"model {model}",
            found=f"a compilation that ended with {process.returncode} "
            f"({children.last_line(errors)})",
            expected="a bundle",
            fix="Free memory, or run 'zoexport compile' with --debug.",
        )


def main() -> None:
    """Compile with the arguments on standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Libraries print to standard output, from Python and from C++.

    def send(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    def report(phase: str, done: float | None) -> None:
        send(phase=phase, done=done, notice=isinstance(phase, Notice))

    try:
        send(bundle=str(_compiled(progress=report, **json.load(sys.stdin))))
    except ZoExportError as error:
        send(error=error.with_type())


def _compiled(
    model: str, method: str | None, target: str, settings: dict[str, Any], progress: Progress
) -> Path:
    from zoexport import models
    from zoexport.compiler.build import compile_bundle
    from zoexport.session import Bundle

    source = models.resolve(model)
    place = models.folder_of(source)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    stats = [(file.name, file.stat()) for file in files]
    identity = [
        __version__,
        source.argument,
        [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        target,
        method,
        {key: str(value) for key, value in settings.items()},
    ]
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    bundle = cache_dir() / "bundles" / digest[:16]
    with only_writer(bundle):
        with contextlib.suppress(BundleError):
            Bundle.open(bundle, trust=ANYONE).verify()
            return bundle
        compile_bundle(
            source,
            method=method,
            target=target,
            output=bundle,
            settings=settings,
            recipe=None,
            force=True,
            progress=progress,
        )
    return bundle


if __name__ == "__main__":
    main()
