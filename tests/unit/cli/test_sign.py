"""``zoexport sign``, and ``--trust`` of every verb that opens a bundle."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import click
import pytest

from tests.support import bundles
from tests.support.signed import Keys, make_keys, sign
from zoexport.cli.main import cli, run
from zoexport.core import minisign
from zoexport.core.manifest import FILE, SIGNATURE


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path / "keys")


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    answer: dict[str, str] = json.loads(capsys.readouterr().out)
    return answer


def test_a_key_is_made_and_signs(
    tmp_path: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "release.key"
    assert run(["sign", "--generate", str(key), "-W", "--json"]) == 0
    made = said(capsys)
    assert made["public_key_file"] == str(tmp_path / "release.pub")
    assert run(["sign", str(bundle), "--key", str(key), "--json"]) == 0
    signed = said(capsys)
    assert signed["public_key"] == made["public_key"]
    tool = ["minisign", "-V", "-P", made["public_key"], "-m", str(bundle / FILE)]
    assert subprocess.run(tool, capture_output=True).returncode == 0
    assert run(["inspect", str(bundle), "--trust", made["public_key"], "--json"]) == 0
    # Again, and by another: the newest counts.
    assert run(["sign", "--generate", str(key), "-W", "--json"]) == 2
    assert run(["sign", "--generate", str(key), "-W", "--force", "--json"]) == 0
    assert run(["sign", str(bundle), "--key", str(key), "--json"]) == 0
    assert run(["inspect", str(bundle), "--trust", made["public_key"], "--json"]) == 1
    assert not list(bundle.glob(".*"))


def test_a_password_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bundle: Path
) -> None:
    monkeypatch.setattr(minisign, "_OPERATIONS", 1 << 15)
    monkeypatch.setattr(minisign, "_MEMORY", 1 << 20)
    asked: list[str] = []

    def prompt(text: str, **_: object) -> str:
        asked.append(text)
        return "secret"

    monkeypatch.setattr(click, "prompt", prompt)
    key = str(tmp_path / "release.key")
    assert run(["sign", "--generate", key]) == 0
    assert run(["sign", str(bundle), "--key", key]) == 0
    assert asked == ["Password of the new key", "Password of the key"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["BUNDLE"],
        ["BUNDLE", "--key", "KEY", "-W"],
        ["BUNDLE", "--key", "KEY", "--generate", "new.key"],
        ["--generate", "new.key", "--key", "KEY"],
    ],
)
def test_what_sign_does_not_take(
    bundle: Path, keys: Keys, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"BUNDLE": str(bundle), "KEY": str(keys.key)}
    assert run(["sign", *(known.get(each, each) for each in arguments), "--json"]) == 2
    assert said(capsys).keys() == {"error"}
    assert not (bundle / SIGNATURE).exists()


def test_a_damaged_bundle_is_not_signed(
    bundle: Path, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundle / "adapter.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert run(["sign", str(bundle), "--key", str(keys.key), "--json"]) == 1
    assert "adapter.safetensors" in capsys.readouterr().out
    assert not (bundle / SIGNATURE).exists()


#: Every verb with a BUNDLE, with what else it must be given; files that are not there would be another message.
VERBS = {
    "train": ["--data", "D", "--state", "S", "--steps", "1"],
    "eval": ["--data", "D"],
    "generate": ["--prompt", "P"],
    "chat": [],
    "parity": ["--steps", "1"],
    "adapter export": ["-o", "A"],
    "adapter import": ["--adapter", "A", "--state", "S"],
    "device push": [],
    "device train": ["--data", "D", "--steps", "1"],
    "device generate": ["--prompt", "P"],
    "device pull": ["--state", "S"],
    "device parity": [],
    "federate simulate": [
        *("--data", "D", "--clients", "2", "--sample", "1", "--rounds", "1"),
        *("--state", "S"),
    ],
    "federate server": [
        *("--state", "S", "--nodes", "N", "--ca", "C", "--certificate", "C", "--key", "K"),
        *("--sample", "1", "--rounds", "1"),
    ],
    "federate client": [
        *("--data", "D", "--state", "S", "--server", "localhost:1", "--ca", "C", "--key", "K"),
    ],
    "pack": [],
    "inspect": [],
}


def with_trust(group: click.Group, path: str = "") -> set[str]:
    found = set()
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= with_trust(command, f"{path}{name} ")
        elif any("--trust" in option.opts for option in command.params):
            found.add(f"{path}{name}")
    return found


def test_every_verb_that_takes_a_bundle_takes_trust() -> None:
    assert isinstance(cli, click.Group)
    # One takes a file, the others an option: test_pack.py, tools/test_report.py, federated/test_rounds.py, and below.
    others = {"unpack", "report", "data check", "federate export"}
    assert with_trust(cli) - others == VERBS.keys()


def test_data_check_refuses_a_bundle_that_nobody_signed(
    tmp_path: Path, keys: Keys, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "a"}\n')
    line = ["data", "check", str(data), "--bundle", str(bundle), "--trust", str(keys.pub)]
    assert run([*line, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["where"] == str(bundle / SIGNATURE)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("signer", ["nobody", "another"])
def test_what_is_not_signed_by_a_trusted_key_is_refused(
    verb: str,
    signer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = make_keys(tmp_path / "keys")
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    bundle = bundles.write_bundle(tmp_path / "bundle")
    if signer == "another":
        sign(bundle, keys.other)
    # What is looked at before the bundle, where it is missing.
    for name in ("C", "K", "N/a.pub", "D"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text('{"text": "a"}\n')
    before = sorted(path.name for path in place.iterdir())
    line = [*verb.split(), str(bundle), *VERBS[verb], "--trust", str(keys.pub), "--json"]
    assert run(line) == 1
    found = json.loads(capsys.readouterr().out)["error"]
    expected = "no signature" if signer == "nobody" else "a signature by the key"
    assert found["where"] == str(bundle / SIGNATURE) and expected in found["found"], found
    assert sorted(path.name for path in place.iterdir()) == before
