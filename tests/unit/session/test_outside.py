"""Files of strangers: what the session and Python accept of their JSON, and that none of it ends the process."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.sessions import open_session
from tests.support.strangers import attach_state, in_child, load_line, open_bundle, rewrite
from zoexport.core import outside
from zoexport.core.errors import BundleError, ConfigError, DataError, StateError
from zoexport.core.files import sha256
from zoexport.session import Bundle, Dataset

DEEP = b"[" * 200_000 + b"]" * 200_000
#: What stands behind a key, and whether that is accepted.
TEXTS = {
    "null": (b"null", True),
    "spaces": (b" \t\n\r[ 1 , 2 ] ", True),
    "zero": (b"-0", True),
    "float": (b"1.50e-02", True),
    "many digits": (b"0.1000000000000000055511151231257827021181583404541015625", True),
    "tiny": (b"1e-999", True),
    "huge": (b"1e999", False),
    "minus huge": (b"-1e999", False),
    "largest": (b"18446744073709551615", True),
    "beyond 64 bits": (b"18446744073709551616", False),
    "least": (b"-9223372036854775808", True),
    "below 64 bits": (b"-9223372036854775809", False),
    "many digits of an integer": (b"1" * 5000, False),
    "leading zero": (b"01", False),
    "plus": (b"+1", False),
    "bare point": (b"1.", False),
    "NaN": (b"NaN", False),
    "Infinity": (b"Infinity", False),
    "minus Infinity": (b"-Infinity", False),
    "twice": (b'{"a": 1, "b": 2, "a": 1}', False),
    "twice by escapes": (b'{"a": 1, "\\u0061": 2}', False),
    "twice in different objects": (b'[{"a": 1}, {"a": 2}]', True),
    "text": ('"é \u2028 \U0001f600"'.encode(), True),
    "escapes": (b'"\\u00e9 \\ud83d\\ude00 \\/ \\" \\b\\f\\n\\r\\t \\u0000 \\u001f \x7f"', True),
    "half a pair": (b'"\\ud83d"', False),
    "other half": (b'"\\ude00"', False),
    "half a pair in a name": (b'{"\\ud83d": 1}', False),
    "bad escape": (b'"\\x41"', False),
    "control": (b'"a\tb"', False),
    "raw null byte": (b'"a\x00b"', False),
    "latin-1": (b'"\xe9"', False),
    "overlong": (b'"\xc0\xaf"', False),
    "surrogate in UTF-8": (b'"\xed\xa0\x80"', False),
    "beyond Unicode": (b'"\xf4\x90\x80\x80"', False),
    "comment": (b"1 /* one */", False),
    "trailing comma": (b"[1,]", False),
    "single quotes": (b"'a'", False),
    "unquoted": (b"{a: 1}", False),
    "unended": (b"[1", False),
    "empty": (b"", False),
    # One object is around it.
    "deepest lists": (b"[" * 63 + b"]" * 63, True),
    "too deep lists": (b"[" * 64 + b"]" * 64, False),
    "deepest objects": (b'{"a":' * 63 + b"1" + b"}" * 63, True),
    "too deep objects": (b'{"a":' * 64 + b"1" + b"}" * 64, False),
    "very deep": (DEEP, False),
}


def accepted_line(content: bytes, folder: Path) -> bool:
    path = folder / "line.jsonl"
    path.write_bytes(content.replace(b"\n", b" "))
    with Dataset() as dataset:
        try:
            dataset.load(path)
        except DataError as error:
            place = (error.where, error.expected)
            return place != (f"{path}, line 1", "valid JSON")
        return True


def accepted_text(content: bytes) -> bool:
    try:
        outside.parse(content)
    except outside.BadJsonError as error:
        return str(error) == ""
    return True


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "very deep"])
def test_both_accept_the_same_json(name: str, tmp_path: Path) -> None:
    text, accepted = TEXTS[name]
    line = b'{"candidates": [{"tokens": [1], "labels": [1]}], "more": ' + text + b"}"
    assert accepted_line(line, tmp_path) == accepted
    assert accepted_text(line) == accepted


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        (b'{"a": 1}\x00garbage', False),
        (b'{"a": 1}\x00', False),
        (b'{"a": 1} {"b": 2}', False),
        (b'\xef\xbb\xbf{"a": 1}', False),
        ('{"a": 1}'.encode("utf-16"), False),
        (b"\x0b{}", False),
        (b"  ", False),
        (b"3", True),
    ],
)
def test_whole_documents_are_read(
    content: bytes, accepted: bool, tmp_path: Path, bundle: Path
) -> None:
    assert accepted_text(content) == accepted
    (bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError) as refused:
        open_session(bundle)
    # What is JSON is refused as something that is no manifest.
    assert (refused.value.expected == "valid JSON") == (not accepted)


DEPTH = "found more than 64 lists and objects inside one another; expected valid JSON."


@pytest.mark.parametrize("key", ["tokens", "labels", "more"])
def test_deep_lines(key: str, tmp_path: Path) -> None:
    values = {"tokens": b"[1]", "labels": b"[1]", "more": b"1"} | {key: b"[" + DEEP + b"]"}
    candidate = b'{"tokens": %(tokens)s, "labels": %(labels)s}'.replace(
        b"%(tokens)s", values["tokens"]
    )
    candidate = candidate.replace(b"%(labels)s", values["labels"])
    path = tmp_path / "deep.jsonl"
    path.write_bytes(b'{"candidates": [' + candidate + b'], "more": ' + values["more"] + b"}\n")
    assert DEPTH in in_child(load_line, path)


def test_deep_manifests(bundle: Path) -> None:
    path = bundle / "manifest.json"
    for key in (b'"schema_version": 1', b'"rng": '):
        text = path.read_bytes()
        found = text.index(key)
        end = text.index(b",\n", found)
        deep = text[:found] + key.split(b":")[0] + b": " + DEEP + text[end:]
        (bundle / "manifest.json").write_bytes(deep)
        assert DEPTH in in_child(open_bundle, bundle)
        path.write_bytes(text)


def test_deep_state(bundle: Path, tmp_path: Path) -> None:
    with open_session(bundle, tmp_path / "state"):
        pass
    text = (tmp_path / "state" / "state.json").read_bytes()
    (tmp_path / "state" / "state.json").write_bytes(text.replace(b'"seed": 7', b'"seed": ' + DEEP))
    assert DEPTH in in_child(attach_state, bundle, tmp_path / "state")


@pytest.mark.parametrize("value", [DEEP, b'{"dtype": ' + DEEP + b"}", b'{"shape": ' + DEEP + b"}"])
def test_deep_safetensors(value: bytes, tmp_path: Path) -> None:
    header = b'{"__metadata__": {}, "lora_B.proj": ' + value + b"}"
    adapter = struct.pack("<Q", len(header)) + header
    path = bundles.write_bundle(tmp_path / "bundle")
    (path / "adapter.safetensors").write_bytes(adapter)
    rewrite(path)
    assert DEPTH in in_child(open_bundle, path)


def refused(bundle: Path) -> str:
    """Return what is found in a manifest that is refused, by a message that names the file."""
    with pytest.raises(BundleError) as error:
        Bundle.open(bundle)
    assert error.value.where.startswith(str(bundle / "manifest.json"))
    return error.value.found


@pytest.mark.parametrize("number", ["1e-2", "0.010", "1E-2", "1.0e-02", "0.01"])
def test_ids_are_of_numbers_as_written(number: str, bundle: Path) -> None:
    """Check that the library takes a number that Python would write otherwise, and an id of it as it is written."""
    path = bundle / "manifest.json"
    text = path.read_text("utf-8")
    assert '"eps": 0.01' in text
    text = text.replace('"eps": 0.01', f'"eps": {number}')
    content = json.loads(text)
    known = content.pop("bundle_id")
    written = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    written = written.replace('"eps":0.01', f'"eps":{number}')
    text = text.replace(known, hashlib.sha256(written.encode()).hexdigest())
    path.write_text(text, "utf-8")
    open_session(bundle).close()
    assert Bundle.open(bundle).manifest["settings"]["eps"] == 0.01


@pytest.mark.parametrize(
    "name",
    [
        "../x.bin",
        "a/../../x.bin",
        "/x.bin",
        "a\\..\\x.bin",
        "..",
        "a\nb",
        "x.bin\n",
        "\n../x.bin",
        "",
    ],
)
@pytest.mark.parametrize("place", ["files", "weights", "program"])
def test_names_stay_inside(name: str, place: str, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"abc")
    entry = {"bytes": 3, "sha256": sha256(tmp_path / "x.bin")}

    def change(content: dict[str, Any]) -> dict[str, Any]:
        content["files"][name] = entry
        if place == "weights":
            content["weights"] = {"file": name}
        elif place == "program":
            content["programs"][0]["file"] = name
        return content

    rewrite(bundle, change)
    refused(bundle)


@pytest.mark.parametrize("place", ["weights", "program"])
def test_names_that_are_not_listed(place: str, bundle: Path) -> None:
    (bundle / "other.bin").write_bytes(b"abc")

    def change(content: dict[str, Any]) -> dict[str, Any]:
        if place == "weights":
            content["weights"] = {"file": "other.bin"}
        else:
            content["programs"][0]["file"] = "other.bin"
        return content

    rewrite(bundle, change)
    refused(bundle)


def test_whole_numbers_are_written_whole(bundle: Path) -> None:
    rewrite(bundle, lambda content: {**content, "rows": 2.0})
    refused(bundle)


def test_sizes_beyond_any_machine(tmp_path: Path) -> None:
    """Rows of 2^20 by 2^20 tokens, and activations whose size in bytes is beyond 64 bits."""
    path = bundles.write_bundle(tmp_path / "rows", rows=1 << 20, max_length=1 << 20)
    assert refused(path) == "[1048576,1048576]"
    path = split_bundles.write_bundle(tmp_path / "split")

    def huge(content: dict[str, Any]) -> dict[str, Any]:
        for program in content["programs"]:
            for value in (*program["inputs"], *program["outputs"]):
                if value["role"] == "activation":
                    value["shape"] = [1 << 20, 1 << 20, 1 << 24]
        return content

    rewrite(path, huge)
    assert refused(path) == "[1048576,1048576,16777216]"


def test_rows_beyond_this_machine(tmp_path: Path) -> None:
    path = bundles.write_bundle(tmp_path / "bundle", rows=1 << 16, max_length=1 << 20)
    with pytest.raises(
        BundleError, match=r"calls whose rows, noise and labels take \d+ bytes"
    ) as refused:
        open_session(path)
    assert "of this machine's memory" in refused.value.expected


def test_examples_beyond_this_machine(tmp_path: Path, dataset: Dataset) -> None:
    """Terabytes of examples for one update: from the manifest, and from the host."""
    huge = {"batch_size": 1 << 30, "gradient_accumulation_steps": 1 << 30}
    path = bundles.write_bundle(tmp_path / "bundle", settings=huge)
    with open_session(path) as session:
        found = "1073741824 x 1073741824 examples, whose rows take 2^64 bytes or more"
        with pytest.raises(ConfigError) as refused:
            session.train(dataset, 1)
        assert (refused.value.where, refused.value.found) == (
            "batch_size x gradient_accumulation_steps",
            found,
        )
        with pytest.raises(
            ConfigError, match="1048576 x 1048576 examples, whose rows take 70368744177664 bytes"
        ):
            session.configure(batch_size=1 << 20, gradient_accumulation_steps=1 << 20)
        session.configure(batch_size=2, gradient_accumulation_steps=2)
        session.train(dataset, 1)


def test_replays_look_at_an_imported_adapter(
    bundle: Path, tmp_path: Path, dataset: Dataset
) -> None:
    """A flipped bit in initial.safetensors is not replayed from."""
    with open_session(bundle, tmp_path / "state") as session:
        values = np.frombuffer(session.read_slot(bundles.SLOT), np.float32) + 1
        session.write_slot(bundles.SLOT, values)
        session.train(dataset, 3)
        path = tmp_path / "state" / "initial.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(StateError, match="damaged values"):
            session.replay_slot(bundles.SLOT, 2)
