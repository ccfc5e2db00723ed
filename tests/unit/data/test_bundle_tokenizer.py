"""The tokenizer of a bundle: its file as the manifest has it, and no other; its tokens as a file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import bundles, tokenizers
from tests.support.tiny_models import VOCAB_SIZE, tiny_tokenizer
from tests.support.transformers_examples import tokenize_file
from zoexport.core.errors import BundleError, DataError, StateError
from zoexport.data.examples import write_examples
from zoexport.session import Bundle, Dataset

CHAT = [{"role": "user", "content": "How was it?"}, {"role": "assistant", "content": "Fine."}]
LINES: list[dict[str, Any]] = [
    {"text": "It was great"},
    {"prompt": "The film. It was", "completion": " great"},
    {"prompt": "It was", "completion": "b", "choices": ["a", "b"]},
]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    tiny_tokenizer(chat_template=None).save_pretrained(files)
    bundles.write_bundle(tmp_path / "like")
    model = json.loads((tmp_path / "like" / "manifest.json").read_text())["model"]
    changes = {
        "text": {"end_tokens": [2], "eos_token": 2},
        "model": {**model, "vocab_size": VOCAB_SIZE},
    }
    return tokenizers.write_bundle(
        tmp_path / "bundle",
        files,
        changes=changes,
        write=lambda path: bundles.write_bundle(path, max_length=24),
    )


def write(folder: Path, *lines: object) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_tokens_are_written_as_transformers_makes_them(bundle: Path, tmp_path: Path) -> None:
    data = write(tmp_path, *LINES)
    told: list[str] = []
    counts = Bundle.open(bundle).write_tokens(
        data, tmp_path / "tokens.jsonl", progress=lambda phase, _: told.append(phase)
    )
    expected = tokenize_file(data, tmp_path / "files", 24, ends=[2])
    write_examples(expected.examples, tmp_path / "expected.jsonl")
    assert (tmp_path / "tokens.jsonl").read_bytes() == (tmp_path / "expected.jsonl").read_bytes()
    assert counts == {"examples": 3, "shortened": expected.shortened}
    assert {*told} == {"tokenizing"}
    with Dataset() as read, Bundle.open(bundle).examples(data) as (made, _):
        read.load(tmp_path / "tokens.jsonl")
        assert read.digest() == made.digest()
    with pytest.raises(StateError), Dataset() as empty:
        empty.write(tmp_path / "no such folder" / "tokens.jsonl")


def test_a_loss_over_choices_needs_choices_in_every_example(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "tokens.jsonl"
    with pytest.raises(DataError, match=r"data\.jsonl:2: found no 'choices'"):
        Bundle.open(bundle).write_tokens(
            write(tmp_path, LINES[2], LINES[1]), output, loss="choices"
        )
    assert not output.exists()
    assert (
        Bundle.open(bundle).write_tokens(write(tmp_path, LINES[2]), output, loss="choices")[
            "examples"
        ]
        == 1
    )


def test_files_that_the_manifest_does_not_list_are_not_read(bundle: Path, tmp_path: Path) -> None:
    Bundle.open(bundle).write_tokens(write(tmp_path, LINES[0]), tmp_path / "before.jsonl")
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (bundle / "chat_template.jinja").write_text(template)
    (bundle / "special_tokens_map.json").write_text('{"bos_token": "great"}')
    (bundle / "added_tokens.json").write_text('{"great": 5}')
    (bundle / "config.json").write_text("[")
    Bundle.open(bundle).write_tokens(write(tmp_path, LINES[0]), tmp_path / "after.jsonl")
    assert (tmp_path / "after.jsonl").read_bytes() == (tmp_path / "before.jsonl").read_bytes()
    with pytest.raises(BundleError, match="chat template"):
        Bundle.open(bundle).write_tokens(
            write(tmp_path, {"messages": CHAT}), tmp_path / "after.jsonl"
        )


def test_an_altered_file_is_refused(bundle: Path, tmp_path: Path) -> None:
    file = bundle / "tokenizer.json"
    content = bytearray(file.read_bytes())
    place = content.index(b" ")
    content[place : place + 1] = b"\n"  # the same JSON
    file.write_bytes(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json: found altered content"):
        Bundle.open(bundle).write_tokens(write(tmp_path, LINES[0]), tmp_path / "tokens.jsonl")
    assert not (tmp_path / "tokens.jsonl").exists()


def test_a_link_is_refused(bundle: Path, tmp_path: Path) -> None:
    shutil.move(bundle / "tokenizer.json", tmp_path / "outside.json")
    (bundle / "tokenizer.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(BundleError, match=r"tokenizer\.json: found a link"):
        Bundle.open(bundle).write_tokens(write(tmp_path, LINES[0]), tmp_path / "tokens.jsonl")


def test_a_bundle_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    made = bundles.write_bundle(tmp_path / "bundle")
    assert not Bundle.open(made).manifest.get("tokenizer")
    with pytest.raises(BundleError, match=r"tokenizer\.json: found no such file"):
        Bundle.open(made).write_tokens(write(tmp_path, LINES[0]), tmp_path / "tokens.jsonl")
