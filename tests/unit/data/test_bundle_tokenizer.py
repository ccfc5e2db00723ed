"""The tokenizer of a bundle: its files as the manifest has them, and no other file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import VOCAB_SIZE, tiny_tokenizer
from zoexport.core.errors import BundleError, ModelError
from zoexport.core.files import sha256
from zoexport.data import tokenize_for

CHAT = [{"role": "user", "content": "How was it?"}, {"role": "assistant", "content": "Fine."}]


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with a tokenizer, and what a manifest says of it."""
    folder = tmp_path / "bundle"
    tiny_tokenizer(chat_template=None).save_pretrained(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert "tokenizer.json" in names and "chat_template.jinja" not in names
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)}
        for name in names
    }
    return folder, {
        "tokenizer": names,
        "files": files,
        "settings": {"seq_len": 24},
        "model": {"vocab_size": VOCAB_SIZE},
    }


def tokens(folder: Path, manifest: dict[str, Any], example: object) -> list[dict[str, Any]]:
    data, output = folder.parent / "data.jsonl", folder.parent / "tokens.jsonl"
    data.write_text(json.dumps(example) + "\n")
    output.unlink(missing_ok=True)
    tokenize_for(folder, manifest, data, output)
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_files_that_the_manifest_does_not_list_are_not_read(
    bundle: tuple[Path, dict[str, Any]],
) -> None:
    folder, manifest = bundle
    text = {"text": "It was great"}
    before = tokens(folder, manifest, text)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    (folder / "special_tokens_map.json").write_text('{"bos_token": "great"}')
    (folder / "added_tokens.json").write_text('{"great": 5}')
    (folder / "config.json").write_text("[")
    assert tokens(folder, manifest, text) == before
    with pytest.raises(Exception, match=r"data\.jsonl:1.*template"):
        tokens(folder, manifest, {"messages": CHAT})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_an_altered_file_is_refused(bundle: tuple[Path, dict[str, Any]], name: str) -> None:
    folder, manifest = bundle
    content = bytearray((folder / name).read_bytes())
    place = content.index(b" ")
    content[place : place + 1] = b"\n"  # the same JSON
    (folder / name).write_bytes(content)
    with pytest.raises(BundleError, match=rf"{name}: found SHA-256"):
        tokens(folder, manifest, {"text": "It was great"})
    assert not (folder.parent / "tokens.jsonl").exists()


def test_a_link_is_refused(bundle: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = bundle
    shutil.move(folder / "tokenizer.json", folder.parent / "outside.json")
    (folder / "tokenizer.json").symlink_to(folder.parent / "outside.json")
    with pytest.raises(BundleError, match=r"tokenizer.json: found a link"):
        tokens(folder, manifest, {"text": "It was great"})


def test_a_bundle_without_a_tokenizer_says_so(bundle: tuple[Path, dict[str, Any]]) -> None:
    folder, manifest = bundle
    manifest["tokenizer"] = []
    with pytest.raises(ModelError, match="no tokenizer files"):
        tokens(folder, manifest, {"text": "It was great"})
