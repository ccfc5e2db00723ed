"""llama.cpp itself, as the npm package node-llama-cpp brings it built."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.support.llama_cpp import installed, program

_SCRIPT = Path(__file__).parent / "llama_cpp" / "score.mjs"


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
    script = installed(_SCRIPT)
    done = subprocess.run(
        [program("node"), script.name],
        cwd=script.parent,
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found
