"""Output of commands: the result on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoexport.core.errors import Cancelled, ZoExportError

INTERNAL_EXIT_CODE = 70


def emit(result: Mapping[str, Any], lines: Sequence[str], *, as_json: bool) -> None:
    """Print the result of a command: one JSON object on one line, or lines of text."""
    if as_json:
        # Escape non-ASCII: some readers treat U+2028 as a line break.
        print(json.dumps(_finite(result), allow_nan=False))
    else:
        print("\n".join(lines))
    sys.stdout.flush()


def emit_error(error: ZoExportError, *, as_json: bool, exit_code: int | None = None) -> int:
    """Print one message (and, with ``--json``, one object) and return the exit code."""
    code = error.exit_code if exit_code is None else exit_code
    message = " ".join(str(error).split())
    if as_json:
        content = {**error.as_dict(), "message": message, "exit_code": code}
        print(json.dumps({"error": content}), flush=True)
    prefix = "" if isinstance(error, Cancelled) else "error: "
    print(f"{prefix}{message}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def output_of_libraries() -> Iterator[None]:
    """Redirect the output of libraries, from Python or C++, to standard error."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        descriptor = -1
    if descriptor != 1:  # captured by a test or a host program
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def size(count: float) -> str:
    """Format a number of bytes, such as ``"84.1 MB"``."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def table(rows: Sequence[Sequence[object]], *, indent: str = "  ") -> list[str]:
    """Format rows as lines with aligned columns, the last one unaligned.

    Booleans as in ``--set``.
    """
    if not rows:
        return []
    texts = [
        [str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in row] for row in rows
    ]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]) - 1)]
    return [
        indent
        + "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        ).rstrip()
        for row in texts
    ]


def _finite(value: Any) -> Any:
    """Return ``value`` with None for numbers that JSON cannot represent."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return value
