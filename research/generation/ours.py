"""A process that generates with a bundle and does nothing else; reads and prints what ``llama.mjs`` does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from zoexport.core.memory import status
from zoexport.session import Session

FIRST = 16
"""Tokens of the prompt whose first answer is timed after opening."""


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Rates of a prompt and of what follows it, and the time to a first token, which loads the programs."""
    prompt, tokens = asked["prompt"], asked["tokens"]
    before = status("RssAnon")
    options: Any = {"stop_tokens": ()}
    start = time.perf_counter()
    with Session.open(Path(asked["model"]), threads=asked["threads"]) as session:
        opened = time.perf_counter()
        session.generate(prompt[:FIRST], max_new_tokens=1, **options)
        first = time.perf_counter()
        session.generate(prompt, max_new_tokens=3, **options)
        made = session.generate(prompt, max_new_tokens=tokens + 1, **options)
    return {
        "prefill_tokens_per_second": len(prompt) / made.prefill_seconds,
        "decode_tokens_per_second": tokens / made.decode_seconds,
        "open_seconds": opened - start,
        "first_seconds": first - opened,
        "own_mb": before,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(json.load(sys.stdin))) + "\n")
