"""llama.cpp itself, as the npm package node-llama-cpp brings it built."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.hosts import needed, run
from zoexport.core.files import atomic_folder
from zoexport.fetch import cache_dir

_PACKAGE = Path(__file__).parent / "llama_cpp"
_SCRIPT = "score.mjs"


@dataclasses.dataclass(frozen=True)
class Job:
    """What is asked of llama.cpp.

    Attributes:
        model, adapter: GGUF files. tokens: that it reads. more: how many tokens it writes after them, greedily.
        logits: whether to return the logits after each token.
    """

    model: Path
    tokens: Sequence[int]
    adapter: Path | None = None
    more: int = 0
    logits: bool = False


def llama_cpp(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """For each job ``logprobs`` of the tokens but the first, ``text``, ``logits`` or None; or an ``error``."""
    asked = [
        {
            "model": str(job.model),
            "adapter": None if job.adapter is None else str(job.adapter),
            "tokens": [int(token) for token in job.tokens],
            "more": job.more,
            "logits": job.logits,
        }
        for job in jobs
    ]
    node = needed("node", "Node 20 or newer")
    done = subprocess.run(
        [str(node), _SCRIPT],
        cwd=_installed(),
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _installed() -> Path:
    """A folder of the package and of the script; npm compares the hashes of package-lock.json."""
    version = json.loads((_PACKAGE / "package.json").read_text())["dependencies"]["node-llama-cpp"]
    folder = cache_dir() / f"node-llama-cpp-{version}"
    if not folder.is_dir():
        npm = needed("npm", "npm (Debian, Ubuntu: apt-get install npm), for llama.cpp")
        with atomic_folder(folder, replace=True) as output:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_PACKAGE / name, output)
            # Not `npm ci`: registries lack some of the builds for other systems, which are not wanted here anyway.
            options = ("--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
            run(npm, "install", *options, cwd=output)
    shutil.copy(_PACKAGE / _SCRIPT, folder)
    return folder
