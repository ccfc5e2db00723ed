"""Examples of a few lines, as the session reads them with a tokenizer of transformers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.tiny_models import VOCAB_SIZE
from zoexport.core.errors import DataError
from zoexport.data.text_entry import tokenizer_of


def read_lines(
    tokenizer: Any,
    lines: bytes,
    max_length: int = 1000,
    *,
    masked: bool = False,
    vocab_size: int = VOCAB_SIZE,
) -> list[dict[str, Any]]:
    """What ``zo_examples_read`` gives of each line; the first problem is raised."""
    config = SimpleNamespace(eos_token_id=None)
    model = SimpleNamespace(config=config)
    loaded = SimpleNamespace(
        tokenizer=tokenizer, model=model, vocab_size=vocab_size, name="the tests"
    )
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tokenizer_of(loaded, max_length, masked=masked) as session,
    ):
        path = Path(folder) / "data.jsonl"
        path.write_bytes(lines)
        session.examples(path, found.append)
    for line in found:
        if "problem" in line:
            raise DataError(**line["problem"])
    return found


def read_line(
    tokenizer: Any, line: dict[str, Any], max_length: int = 1000, *, masked: bool = False
) -> dict[str, Any]:
    """The only line's."""
    (found,) = read_lines(tokenizer, json.dumps(line).encode(), max_length, masked=masked)
    return found
