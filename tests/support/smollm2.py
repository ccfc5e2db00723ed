"""The real model, compiled by the command line as a user does, each bundle once (``tests.support.cache``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.cache import cached
from tests.support.verbs import verb

MODEL = "smollm2-135m"


def compiled(*arguments: object) -> tuple[Path, dict[str, Any]]:
    """The bundle of ``zoexport compile MODEL arguments`` and what that said."""
    folder, result = cached(
        {"compile": MODEL, "arguments": arguments},
        lambda folder: verb("compile", MODEL, *arguments, "-o", folder / "bundle"),
    )
    return folder / "bundle", result
