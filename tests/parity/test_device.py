"""``zoexport device`` with phones that are folders: runner, sessions and files are real, adb is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.phones import SERIAL, add_phone, install_app, install_phones, said
from tests.support.signed import make_keys, sign
from tests.support.tiers import slow_after
from zoexport.cli.main import run
from zoexport.core.manifest import SIGNATURE
from zoexport.core.native import native_folder
from zoexport.session import Session

pytestmark = pytest.mark.parity
DATA = [{"prompt": f"The film number {n}", "completion": " was great"} for n in range(6)]


@pytest.fixture
def phones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of phones, with one phone."""
    return install_phones(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's runner, which the phones run."""
    folder = tmp_path_factory.mktemp("runner")
    for name in ("zoexport-runner", "libzoexport.so"):
        shutil.copy(native_folder() / name, folder)
    return folder


def bundle_of(compiler: Compiler, method: str) -> Path:
    settings: dict[str, Any] = {"prge": {"queries": 2}, "mebp": {"batch": 2}}[method]
    return compiler.bundle("llama_tied", method, **settings)


def test_list(phones: Path, capfd: pytest.CaptureFixture[str]) -> None:
    locked = add_phone(phones, "emulator-5554", "arm64-v8a")
    (locked / "state").write_text("unauthorized")
    entry = {"serial": SERIAL, "state": "device", "model": "Fake_Phone", "abi": "x86_64"}
    other = {**entry, "serial": "emulator-5554", "state": "unauthorized", "abi": None}
    assert said(capfd, "list") == {"devices": [entry, other]}
    shutil.rmtree(phones)
    phones.mkdir()
    assert said(capfd, "list") == {"devices": []}


def test_push_keeps_what_is_there(
    phones: Path, compiler: Compiler, runner: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = bundle_of(compiler, "prge")
    first = said(capfd, "push", bundle, "--runner", runner)
    assert first["copied"] is True and first["serial"] == SERIAL
    there = phones / SERIAL / first["bundle"][1:]
    names = sorted(path.name for path in bundle.iterdir())
    assert sorted(path.name for path in there.iterdir()) == names
    for name in names:
        assert (there / name).read_bytes() == (bundle / name).read_bytes()
    assert sorted(path.name for path in there.parent.iterdir()) == [there.name]
    assert said(capfd, "push", bundle)["copied"] is False
    assert not list((phones / SERIAL).rglob("*.partial"))


def test_the_app_imports_what_is_pushed_to_it(
    phones: Path, compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = shutil.copytree(bundle_of(compiler, "prge"), tmp_path / "a bundle's name.bundle")
    error = said(capfd, "push", bundle, "--app", code=1)
    assert error["found"] == "no dev.zoexport.app"
    app = install_app(phones)
    for _ in range(2):  # the second takes the place of the first
        pushed = said(capfd, "push", bundle, "--app")
        assert (pushed["copied"], pushed["runner"]) == (True, None)
        there = app / "files" / "bundles" / bundle.name
        assert pushed["bundle"] == str(there)
        assert {path.name: path.read_bytes() for path in there.iterdir()} == {
            path.name: path.read_bytes() for path in bundle.iterdir()
        }
        assert [path.name for path in there.parent.iterdir()] == [there.name]

    def nothing_is_left() -> None:
        assert [path.name for path in (phones / SERIAL / "data/local/tmp").rglob("*")] == [
            "zoexport",
            "app",
        ]

    nothing_is_left()
    # An app that ships a key: its own message comes back, and what it has stays.
    shutil.copy(make_keys(tmp_path / "keys").pub, app / "trusted.pub")
    error = said(capfd, "push", bundle, "--app", code=1)
    assert error["where"].endswith(f" (on {SERIAL})") and error["found"] == "no signature", error
    assert (there / "manifest.json").is_file()
    nothing_is_left()
    (app / "killed").touch()
    error = said(capfd, "push", bundle, "--app", code=1)
    assert error["found"] == "no answer to the import"
    nothing_is_left()


def test_the_phone_checks_the_signature_too(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bundle = shutil.copytree(bundle_of(compiler, "prge"), tmp_path / "bundle")
    keys = make_keys(tmp_path / "keys")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in DATA))
    there = phones / SERIAL / said(capfd, "push", bundle, "--runner", runner)["bundle"][1:]
    train = ("train", bundle, "--data", data, "--steps", 1, "--trust", keys.pub)
    assert "no signature" in said(capfd, *train, code=1)["found"]
    # Signed after it was copied: the signature follows.
    sign(bundle, keys.secret)
    assert said(capfd, *train)["steps"] == 1
    assert (there / SIGNATURE).read_bytes() == (bundle / SIGNATURE).read_bytes()
    # What was altered on the phone is found there.
    (there / SIGNATURE).unlink()
    (there / "tokenizer.json").write_bytes(b"x" * (there / "tokenizer.json").stat().st_size)
    refused = said(capfd, *train, code=1)
    assert refused["where"].endswith(f"tokenizer.json (on {SERIAL})"), refused
    assert "altered content" in refused["found"]


@pytest.mark.parametrize("method", slow_after(1, ["prge", "mebp"]))
def test_train_and_pull(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    method: str,
) -> None:
    """In two parts, the second of which goes on; the state is that of ``zoexport train``."""
    bundle = bundle_of(compiler, method)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in DATA))
    settings = ("--set", "lr=0.002", "--set", "lr_schedule=constant", "--set", "seed=9")
    arguments = ("train", bundle, "--data", data, *settings)
    part = said(capfd, *arguments, "--steps", 3, "--runner", runner)
    assert (part["steps"], part["examples"], part["shortened"]) == (3, 6, 0)
    whole = said(capfd, *arguments, "--steps", 5)
    assert whole["losses"][:3] == part["losses"] and len(whole["losses"]) == 5
    assert whole["step_seconds_median"] > 0 and whole["peak_anonymous_mb"] > 0
    assert (
        run(["train", *map(str, arguments[1:]), "--steps", "5", "--state", f"{tmp_path}/here"]) == 0
    )
    capfd.readouterr()
    pulled = said(capfd, "pull", bundle, "--state", tmp_path / "pulled")
    assert pulled["steps"] == 5 and whole["evaluations"] == []
    with Session.open(bundle) as here, Session.open(bundle) as there:
        here.attach(tmp_path / "here", read_only=True)
        there.attach(tmp_path / "pulled", read_only=True)
        assert whole["losses"] == [here.record(step).loss for step in range(5)]
        for slot in here.slots():
            assert here.read_slot(slot.name) == there.read_slot(slot.name)
    error = said(capfd, "pull", bundle, "--state", tmp_path / "pulled", code=2)
    assert "already there" in error["found"]
    said(capfd, "pull", bundle, "--state", tmp_path / "pulled", "--force")
    error = said(capfd, "pull", bundle, "--state", tmp_path / "x", "--run", "other", code=1)
    assert "no state" in error["found"] and not (tmp_path / "x").exists()
    # What is not given is the run's; another value is asked for twice.
    other = ("train", bundle, "--data", data, "--set", "lr=0.004", "--steps", 6)
    error = said(capfd, *other, code=1)
    assert (error["found"], error["expected"]) == ("a run with lr 0.002", "lr 0.004")
    assert said(capfd, *other, "--change-settings")["steps"] == 6
    validating = ("train", bundle, "--data", data, "--steps", 4, "--run", "validating")
    found = said(capfd, *validating, "--eval-data", data, "--eval-every", 2, "--keep", "last")
    assert [one["step"] for one in found["evaluations"]] == [0, 2, 4]
    assert found["best_step"] in (2, 4)


def test_a_run_goes_on_with_its_own_reading(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As texts that go on in the next row, whether that is said again or not."""
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"text": "It was a great film. " * 40}) + "\n")
    arguments = ("train", bundle_of(compiler, "mebp"), "--data", data)
    first = said(capfd, *arguments, "--steps", 1, "--set", "pack=on", "--runner", runner)
    assert first["examples"] > 1
    assert said(capfd, *arguments, "--steps", 2)["examples"] == first["examples"]


def test_the_engine_is_chosen_on_the_phone(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", "android-gpu", generate="on")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in DATA))
    monkeypatch.setenv("ZOEXPORT_VULKAN_DEVICE", "nonesuch")
    train = ("train", bundle, "--data", data, "--steps", 2, "--runner", runner)
    error = said(capfd, *train, code=1)
    assert "Choose the engine executorch" in error["fix"] and error["where"].endswith(SERIAL + ")")
    assert said(capfd, *train, "--engine", "executorch")["steps"] == 2
    generate = ("generate", bundle, "--prompt", "The", "--max-tokens", 2, "--run", "run")
    assert "executorch" in said(capfd, *generate, code=1)["fix"]
    assert said(capfd, *generate, "--engine", "executorch")["run"] == "run"


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param("prge", {"queries": 2}, id="prge"),
        pytest.param(
            "prge", {"weights": "int4"}, id="prge-int8-activations", marks=pytest.mark.slow
        ),
        pytest.param("mebp", {"batch": 2}, id="mebp"),
    ],
)
def test_parity(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    capfd: pytest.CaptureFixture[str],
    method: str,
    settings: dict[str, Any],
) -> None:
    bundle = compiler.bundle("llama_tied", method, **settings)
    report = said(capfd, "parity", bundle, "--steps", 4, "--runner", runner)
    assert report["passed"] is True and report["steps"] == 4
    assert report["phone"] == "Fake Phone, Android 15, x86_64"
    assert report["same_bits"] is (True if method == "prge" else None)
    # The same program on the same processor: nothing may differ.
    assert report["max_relative_loss_error"] == 0
    # An earlier comparison's state is not gone on with.
    assert said(capfd, "parity", bundle, "--steps", 2)["steps"] == 2


def test_parity_fails_where_the_phone_computes_otherwise(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A runner that takes another rate."""
    wrong = shutil.copytree(runner, tmp_path / "wrong")
    shutil.move(wrong / "zoexport-runner", wrong / "real-runner")
    # What is pushed must be a program; it gives way to a script there.
    shutil.copy(runner / "zoexport-runner", wrong)
    bundle = bundle_of(compiler, "mebp")
    said(capfd, "push", bundle, "--runner", wrong)
    there = phones / SERIAL / "data/local/tmp/zoexport/runner/zoexport-runner"
    there.write_text(
        '#!/bin/sh\nexec "$(dirname "$0")/real-runner" "$@" --set lr=0.5 --set clip=0\n'
    )
    report = said(capfd, "parity", bundle, "--steps", 4, code=1)
    assert report["passed"] is False
    assert report["max_relative_loss_error"] > report["bounds"]["loss"]


def test_what_is_missing_is_said(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bundle = bundle_of(compiler, "prge")

    def refused(*arguments: object, code: int = 1) -> dict[str, Any]:
        return said(capfd, *arguments, code=code)

    for verb in ("parity", "push"):
        assert "no /data/local/tmp/zoexport/runner" in refused(verb, bundle)["found"]
        assert not list((phones / SERIAL).rglob("*.zobundle*"))
    assert "no such file" in refused("push", bundle, "--runner", tmp_path)["found"]
    (tmp_path / "zoexport-runner").write_text("#!/bin/sh\n")
    assert refused("push", bundle, "--runner", tmp_path)["found"] == "no 64-bit program"
    assert "no such folder" in refused("push", tmp_path / "nothing")["found"]
    error = refused("push", bundle, "--serial", "other")
    assert SERIAL in error["found"]
    arm = add_phone(phones, "arm", "arm64-v8a")
    assert refused("push", bundle)["found"] == f"2 phones: {SERIAL}, arm"
    error = refused("push", bundle, "--runner", runner, "--serial", "arm")
    assert error["found"] == "a program for x86_64" and "arm64-v8a" in error["expected"]
    assert not (arm / "data/local/tmp/zoexport").exists()
    (arm / "state").write_text("unauthorized")
    assert refused("push", bundle, "--serial", "arm")["found"] == "the state 'unauthorized'"
    (arm / "state").unlink()
    (arm / "broken").touch()
    assert "offline" in refused("push", bundle, "--serial", "arm")["found"]
    error = refused(
        "pull", bundle, "--state", tmp_path / "s", "--run", "../x", "--serial", SERIAL, code=2
    )
    assert "--run ../x" in error["where"]
    shutil.rmtree(phones)
    phones.mkdir()
    assert refused("push", bundle)["found"] == "no phone"
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refused("list")
    assert error["where"] == "adb" and "ANDROID_HOME" in error["fix"]


def test_the_runners_failure_is_ours(
    phones: Path,
    compiler: Compiler,
    runner: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    bundle = bundle_of(compiler, "prge")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in DATA))
    arguments = ("train", bundle, "--data", data, "--steps", 200, "--runner", runner)
    error = said(capfd, *arguments, "--set", "lr=1e6", code=3)
    assert f"(on {SERIAL})" in error["where"] and "Lower lr" in error["fix"]
    error = said(capfd, *arguments, "--set", "seed=3", code=1)
    assert "seed 0" in error["found"]
    program = phones / SERIAL / "data/local/tmp/zoexport/runner/zoexport-runner"
    program.write_text("#!/bin/sh\necho 'CANNOT LINK EXECUTABLE'\nexit 1\n")
    error = said(capfd, "train", bundle, "--data", data, "--steps", 3, code=1)
    assert "CANNOT LINK EXECUTABLE" in error["found"]
