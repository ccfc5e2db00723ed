"""Examples by a tokenizer that every language can have: a token is a byte of UTF-8 plus one, and 0 comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zoexport.core.errors import DataError
from zoexport.data.examples import tokenize_records
from zoexport.data.records import parse_line

SEQ_LEN = 16
_VOCABULARY = 257

LINES: list[Any] = [
    {"text": "to be"},
    {"text": "a text that is longer than a row, cut at its end"},
    {"text": "naïve ▶", "source": "two and three bytes"},
    {"prompt": "it was", "completion": " so", "id": 7},
    {"prompt": "", "completion": "alone"},
    {"prompt": "a prompt too long, whose start is dropped", "completion": " yes"},
    {"prompt": "so", "completion": "a completion that is too long by itself"},
    {"prompt": "it", "completion": " no", "choices": [" yes", " no"]},
    {"prompt": "dropped for the longest", "completion": "A", "choices": ["A", "several", "bb"]},
    {"prompt": "cafe", "completion": "e\u0301", "choices": ["\u00e9", "e\u0301"]},
    {"messages": [{"role": "u", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
    {"messages": [{"role": "assistant", "content": "hm"}]},
]
BAD: list[Any] = [
    {"text": 5},
    {"text": "a", "prompt": "b", "completion": "c"},
    {"source": "nothing"},
    {"prompt": "a"},
    {"prompt": "a", "completion": ""},
    {"prompt": "a", "completion": "b", "choices": ["b"]},
    {"prompt": "a", "completion": "b", "choices": ["b", "b"]},
    {"prompt": "a", "completion": "b", "choices": ["c", "d"]},
    {"prompt": "a", "completion": "b", "choices": ["b", 5]},
    {"prompt": "a", "completion": "b", "choice": ["b", "c"]},
    {"prompt": "a", "completion": "b", "tools": []},
    {"messages": []},
    {"messages": [{"role": "user", "content": "hi"}]},
    {"messages": [{"role": "assistant", "content": " "}]},
    {"messages": [{"role": "assistant"}]},
    {"text": ""},
    ["text"],
]


class ByteTokenizer:
    """What of transformers' tokenizers is asked for."""

    is_fast = False
    chat_template = "turns"

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        first = [0] if add_special_tokens else []
        return {"input_ids": [first + [byte + 1 for byte in text.encode()] for text in texts]}

    def apply_chat_template(
        self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        turns = "".join(f"<{turn['role']}>{turn['content']};" for turn in messages)
        return turns + ("<assistant>" if add_generation_prompt else "")


def write(folder: Path) -> Path:
    """Write ``good.jsonl``, ``examples.json`` with what it becomes, and ``bad-<n>.jsonl`` of one bad line each."""
    folder.mkdir(parents=True)
    lines = [json.dumps(line) for line in LINES]
    (folder / "good.jsonl").write_text("\ufeff" + "\r\n\n".join(lines), encoding="utf-8")
    pairs = list(_examples(lines))
    content = {
        "seq_len": SEQ_LEN,
        "examples": [example.as_dict() for example, _ in pairs],
        "shortened": sum(short for _, short in pairs),
        "bad": len(BAD),
    }
    (folder / "examples.json").write_text(json.dumps(content))
    for number, line in enumerate(BAD):
        try:
            list(_examples([json.dumps(line)]))
        except DataError:
            (folder / f"bad-{number}.jsonl").write_text(json.dumps(line))
        else:
            raise AssertionError(f"{line} was accepted")
    return folder


def _examples(lines: list[str]) -> Any:
    records = [parse_line(line.encode(), f"line {n}") for n, line in enumerate(lines, 1)]
    return tokenize_records(records, ByteTokenizer(), SEQ_LEN, _VOCABULARY)
