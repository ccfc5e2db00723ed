"""What ``zoexport`` alone says: the next step, by what is in the working folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from zoexport.core.manifest import FILE as MANIFEST
from zoexport.core.native import native_folder

STATE = "state.json"
_ID = "bundle_id"


def next_step(folder: Path) -> list[str]:
    """Lines that name one command, or a few where a person has the choice.

    Args:
        folder: where to look for bundles and states, not deeper.
    """
    if not native_folder().is_dir():
        return _said(
            "The native library is missing. Next, for the command that installs it:",
            "zoexport doctor --fix",
        )
    bundles = {found: path for path, found in _with_id(folder, MANIFEST)}
    if not bundles:
        return _said(
            "There is no bundle in this folder. Next, compile one:",
            "zoexport compile smollm2-135m --target android-cpu",
        )
    pairs = [(bundles[of], state) for state, of in _with_id(folder, STATE) if of in bundles]
    if not pairs:
        bundle = _name(next(iter(bundles.values())))
        return _said(
            f"The bundle {bundle} is not trained yet. Next, with examples in train.jsonl:",
            f"zoexport train {bundle} --data train.jsonl --state run --steps 100",
        )
    bundle, state = (_name(path) for path in pairs[0])
    return _said(
        f"The state {state} was trained with the bundle {bundle}. Next, one of these:",
        f'zoexport generate {bundle} --state {state} --prompt "Once upon a time"',
        f"zoexport eval {bundle} --state {state} --data test.jsonl",
        f"zoexport adapter export {bundle} --state {state} -o adapter",
    )


def _said(why: str, *commands: str) -> list[str]:
    return [why, *(f"    {command}" for command in commands)]


def _name(path: Path) -> str:
    return shlex.quote(path.name)


def _with_id(folder: Path, file: str) -> Iterator[tuple[Path, str]]:
    """Folders with a bundle's or a state's description, the newest first, and the bundle that it names."""
    found = [path for path in folder.glob(f"*/{file}") if path.is_file()]
    for path in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # whoever opens it says what is wrong
        if isinstance(content, dict) and isinstance(content.get(_ID), str):
            yield path.parent, content[_ID]
