"""``zoexport device`` with phones that are folders: runner, sessions and files are real, adb is not."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.phones import SERIAL, add_phone, install_app, install_phones, said
from tests.support.qnn import needs_qnn, variables
from tests.support.signed import make_keys, sign
from tests.support.tiers import slow_after
from zoexport.cli.main import run
from zoexport.core.manifest import SIGNATURE
from zoexport.core.native import native_folder
from zoexport.session import Session

pytestmark = pytest.mark.parity
DATA = [{"prompt": f"The film number {n}", "completion": " was great"} for n in range(6)]


@dataclasses.dataclass
class Device:
    """A folder of phones, with one phone, and this machine's runner, which the phones run."""

    folder: Path
    phones: Path
    runner: Path
    capfd: pytest.CaptureFixture[str]

    def said(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        return said(self.capfd, *arguments, code=code)

    def data(self) -> Path:
        path = self.folder / "data.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in DATA))
        return path


@pytest.fixture
def device(
    tmp_path: Path,
    runner: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Device:
    return Device(tmp_path, install_phones(tmp_path, monkeypatch), runner, capfd)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runner")
    for name in ("zoexport-runner", "libzoexport.so"):
        shutil.copy(native_folder() / name, folder)
    return folder


def bundle_of(compiler: Compiler, method: str) -> Path:
    settings: dict[str, Any] = {"prge": {"num_queries": 2}, "mebp": {"batch_size": 2}}[method]
    return compiler.bundle("llama_tied", method, **settings)


def test_list(device: Device) -> None:
    locked = add_phone(device.phones, "emulator-5554", "arm64-v8a")
    (locked / "state").write_text("unauthorized")
    entry = {"serial": SERIAL, "state": "device", "model": "Fake_Phone", "abi": "x86_64"}
    other = {**entry, "serial": "emulator-5554", "state": "unauthorized", "abi": None}
    assert device.said("list") == {"devices": [entry, other]}
    shutil.rmtree(device.phones)
    device.phones.mkdir()
    assert device.said("list") == {"devices": []}


def test_push_keeps_what_is_there(device: Device, compiler: Compiler) -> None:
    bundle = bundle_of(compiler, "prge")
    first = device.said("push", bundle, "--runner", device.runner)
    assert first["copied"] is True and first["serial"] == SERIAL
    there = device.phones / SERIAL / first["bundle"][1:]
    names = sorted(path.name for path in bundle.iterdir())
    assert sorted(path.name for path in there.iterdir()) == names
    for name in names:
        assert (there / name).read_bytes() == (bundle / name).read_bytes()
    assert sorted(path.name for path in there.parent.iterdir()) == [there.name]
    assert device.said("push", bundle)["copied"] is False
    assert not list((device.phones / SERIAL).rglob("*.partial"))


def test_the_app_imports_what_is_pushed_to_it(device: Device, compiler: Compiler) -> None:
    bundle = shutil.copytree(bundle_of(compiler, "prge"), device.folder / "a bundle's name.bundle")
    error = device.said("push", bundle, "--app", code=1)
    assert error["found"] == "no dev.zoexport.app"
    app = install_app(device.phones)
    for _ in range(2):  # the second takes the place of the first
        pushed = device.said("push", bundle, "--app")
        assert (pushed["copied"], pushed["runner"]) == (True, None)
        there = app / "files" / "bundles" / bundle.name
        assert pushed["bundle"] == str(there)
        assert {path.name: path.read_bytes() for path in there.iterdir()} == {
            path.name: path.read_bytes() for path in bundle.iterdir()
        }
        assert [path.name for path in there.parent.iterdir()] == [there.name]

    def nothing_is_left() -> None:
        assert [path.name for path in (device.phones / SERIAL / "data/local/tmp").rglob("*")] == [
            "zoexport",
            "app",
        ]

    nothing_is_left()
    # An app that ships a key: its own message comes back, and what it has stays.
    shutil.copy(make_keys(device.folder / "keys").pub, app / "trusted.pub")
    error = device.said("push", bundle, "--app", code=1)
    assert error["where"].endswith(f" (on {SERIAL})") and error["found"] == "no signature", error
    assert (there / "manifest.json").is_file()
    nothing_is_left()
    (app / "killed").touch()
    error = device.said("push", bundle, "--app", code=1)
    assert error["found"] == "no answer to the import"
    nothing_is_left()


def test_the_phone_checks_the_signature_too(device: Device, compiler: Compiler) -> None:
    bundle = shutil.copytree(bundle_of(compiler, "prge"), device.folder / "bundle")
    keys = make_keys(device.folder / "keys")
    data = device.data()
    there = (
        device.phones
        / SERIAL
        / device.said("push", bundle, "--runner", device.runner)["bundle"][1:]
    )
    train = ("train", bundle, "--data", data, "--steps", 1, "--trust", keys.pub)
    assert "no signature" in device.said(*train, code=1)["found"]
    # Signed after it was copied: the signature follows.
    sign(bundle, keys.secret)
    assert device.said(*train)["steps"] == 1
    assert (there / SIGNATURE).read_bytes() == (bundle / SIGNATURE).read_bytes()
    # What was altered on the phone is found there.
    (there / SIGNATURE).unlink()
    (there / "tokenizer.json").write_bytes(b"x" * (there / "tokenizer.json").stat().st_size)
    refused = device.said(*train, code=1)
    assert refused["where"].endswith(f"tokenizer.json (on {SERIAL})"), refused
    assert "altered content" in refused["found"]


@pytest.mark.parametrize("method", slow_after(1, ["prge", "mebp"]))
def test_train_and_pull(device: Device, compiler: Compiler, method: str) -> None:
    """In two parts, the second of which goes on; the state is that of ``zoexport train``."""
    bundle = bundle_of(compiler, method)
    data = device.data()
    settings = (
        "--set",
        "learning_rate=0.002",
        "--set",
        "lr_scheduler_type=constant",
        "--set",
        "seed=9",
    )
    arguments = ("train", bundle, "--data", data, *settings)
    part = device.said(*arguments, "--steps", 3, "--runner", device.runner)
    assert (part["steps"], part["examples"], part["shortened"]) == (3, 6, 0)
    whole = device.said(*arguments, "--steps", 5)
    assert whole["losses"][:3] == part["losses"] and len(whole["losses"]) == 5
    assert whole["step_seconds_median"] > 0 and whole["peak_anonymous_mb"] > 0
    assert (
        run(["train", *map(str, arguments[1:]), "--steps", "5", "--state", f"{device.folder}/here"])
        == 0
    )
    device.capfd.readouterr()
    pulled = device.said("pull", bundle, "--state", device.folder / "pulled")
    assert pulled["steps"] == 5 and whole["evaluations"] == []
    with Session.open(bundle) as here, Session.open(bundle) as there:
        here.attach(device.folder / "here", read_only=True)
        there.attach(device.folder / "pulled", read_only=True)
        assert whole["losses"] == [here.record(step).loss for step in range(5)]
        for slot in here.slots():
            assert here.read_slot(slot.name) == there.read_slot(slot.name)
    error = device.said("pull", bundle, "--state", device.folder / "pulled", code=2)
    assert "already there" in error["found"]
    device.said("pull", bundle, "--state", device.folder / "pulled", "--force")
    error = device.said("pull", bundle, "--state", device.folder / "x", "--run", "other", code=1)
    assert "no state" in error["found"] and not (device.folder / "x").exists()
    # What is not given is the run's; another value is asked for twice.
    other = ("train", bundle, "--data", data, "--set", "learning_rate=0.004", "--steps", 6)
    error = device.said(*other, code=1)
    assert (error["found"], error["expected"]) == (
        "a run with learning_rate 0.002",
        "learning_rate 0.004",
    )
    assert device.said(*other, "--change-settings")["steps"] == 6
    validating = ("train", bundle, "--data", data, "--steps", 4, "--run", "validating")
    found = device.said(*validating, "--eval-data", data, "--eval-every", 2, "--keep", "last")
    assert [one["step"] for one in found["evaluations"]] == [0, 2, 4]
    assert found["best_step"] in (2, 4)


def test_a_run_goes_on_with_its_own_reading(device: Device, compiler: Compiler) -> None:
    """As texts that go on in the next row, whether that is said again or not."""
    data = device.folder / "data.jsonl"
    data.write_text(json.dumps({"text": "It was a great film. " * 40}) + "\n")
    arguments = ("train", bundle_of(compiler, "mebp"), "--data", data)
    first = device.said(*arguments, "--steps", 1, "--set", "pack=true", "--runner", device.runner)
    assert first["examples"] > 1
    assert device.said(*arguments, "--steps", 2)["examples"] == first["examples"]


def test_the_engine_is_chosen_on_the_phone(
    device: Device, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", "android-gpu", generate=True)
    data = device.data()
    monkeypatch.setenv("ZOEXPORT_VULKAN_DEVICE", "nonesuch")
    train = ("train", bundle, "--data", data, "--steps", 2, "--runner", device.runner)
    error = device.said(*train, "--engine", "vulkan", code=1)
    assert "nonesuch" in error["found"] and error["where"].endswith(SERIAL + ")")
    assert device.said(*train, "--engine", "executorch")["engine"] == "executorch"
    assert device.said(*train, "--run", "other")["engine"] == "executorch"
    generate = ("generate", bundle, "--prompt", "The", "--max-new-tokens", 2, "--run", "run")
    assert device.said(*generate)["run"] == "run"


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        pytest.param("prge", {"num_queries": 2}, id="prge"),
        pytest.param(
            "prge", {"weights": "int4"}, id="prge-int8-activations", marks=pytest.mark.slow
        ),
        pytest.param("mebp", {"batch_size": 2}, id="mebp"),
    ],
)
def test_parity(device: Device, compiler: Compiler, method: str, settings: dict[str, Any]) -> None:
    bundle = compiler.bundle("llama_tied", method, **settings)
    report = device.said("parity", bundle, "--steps", 4, "--runner", device.runner)
    assert report["passed"] is True and report["steps"] == 4
    assert report["phone"] == "Fake Phone, Android 15, x86_64"
    assert report["same_bits"] is (True if method == "prge" else None)
    # The same program on the same processor: nothing may differ.
    assert report["max_relative_loss_error"] == 0
    # An earlier comparison's state is not gone on with.
    assert device.said("parity", bundle, "--steps", 2)["steps"] == 2


@pytest.mark.slow
@needs_qnn
def test_parity_of_an_npu(device: Device, compiler: Compiler) -> None:
    """The phone's side runs in QNN's emulation, whose libraries the runner finds as a phone's finds its own."""
    shape = {"max_length": 12, "batch_size": 8, "labels": 96, "num_queries": 1}
    bundle = compiler.bundle("llama_tied", "prge", "android-npu", weights="int4", **shape)
    device.capfd.readouterr()  # what QNN's compiler printed
    device.said("push", bundle, "--runner", device.runner)
    (device.phones / SERIAL / "environment.json").write_text(json.dumps(variables()))
    # A process of its own keeps what QNN prints from its standard output.
    command = [sys.executable, "-m", "zoexport", "device", "parity", str(bundle), "--steps", "2"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["passed"] is True and report["same_bits"] is True
    assert 0 < report["max_relative_loss_error"] < 1e-4  # fp16 on one side
    assert report["relative_gradient_error"] < 0.05
    assert report["signs"] == {"same": 2, "of": 2}


def test_parity_fails_where_the_phone_computes_otherwise(
    device: Device, compiler: Compiler
) -> None:
    """A runner that takes another rate."""
    wrong = shutil.copytree(device.runner, device.folder / "wrong")
    shutil.move(wrong / "zoexport-runner", wrong / "real-runner")
    # What is pushed must be a program; it gives way to a script there.
    shutil.copy(device.runner / "zoexport-runner", wrong)
    bundle = bundle_of(compiler, "mebp")
    device.said("push", bundle, "--runner", wrong)
    there = device.phones / SERIAL / "data/local/tmp/zoexport/runner/zoexport-runner"
    there.write_text(
        '#!/bin/sh\nexec "$(dirname "$0")/real-runner" "$@" --set learning_rate=0.5 --set max_grad_norm=0\n'
    )
    report = device.said("parity", bundle, "--steps", 4, code=1)
    assert report["passed"] is False
    assert report["max_relative_loss_error"] > report["bounds"]["loss"]


def test_what_is_missing_is_said(
    device: Device, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = bundle_of(compiler, "prge")

    def refused(*arguments: object, code: int = 1) -> dict[str, Any]:
        return device.said(*arguments, code=code)

    for verb in ("parity", "push"):
        assert "no /data/local/tmp/zoexport/runner" in refused(verb, bundle)["found"]
        assert not list((device.phones / SERIAL).rglob("*.zobundle*"))
    assert "no such file" in refused("push", bundle, "--runner", device.folder)["found"]
    (device.folder / "zoexport-runner").write_text("#!/bin/sh\n")
    assert refused("push", bundle, "--runner", device.folder)["found"] == "no 64-bit program"
    assert "no such folder" in refused("push", device.folder / "nothing")["found"]
    error = refused("push", bundle, "--serial", "other")
    assert SERIAL in error["found"]
    arm = add_phone(device.phones, "arm", "arm64-v8a")
    assert refused("push", bundle)["found"] == f"2 phones: {SERIAL}, arm"
    error = refused("push", bundle, "--runner", device.runner, "--serial", "arm")
    assert error["found"] == "a program for x86_64" and "arm64-v8a" in error["expected"]
    assert not (arm / "data/local/tmp/zoexport").exists()
    (arm / "state").write_text("unauthorized")
    assert refused("push", bundle, "--serial", "arm")["found"] == "the state 'unauthorized'"
    (arm / "state").unlink()
    (arm / "broken").touch()
    assert "offline" in refused("push", bundle, "--serial", "arm")["found"]
    error = refused(
        "pull", bundle, "--state", device.folder / "s", "--run", "../x", "--serial", SERIAL, code=2
    )
    assert "--run ../x" in error["where"]
    shutil.rmtree(device.phones)
    device.phones.mkdir()
    assert refused("push", bundle)["found"] == "no phone"
    monkeypatch.setenv("PATH", str(device.folder))
    error = refused("list")
    assert error["where"] == "adb" and "ANDROID_HOME" in error["fix"]


def test_the_runners_failure_is_ours(device: Device, compiler: Compiler) -> None:
    bundle = bundle_of(compiler, "prge")
    data = device.data()
    arguments = ("train", bundle, "--data", data, "--steps", 200, "--runner", device.runner)
    error = device.said(*arguments, "--set", "learning_rate=1e6", code=3)
    assert f"(on {SERIAL})" in error["where"] and "Lower learning_rate" in error["fix"]
    error = device.said(*arguments, "--set", "seed=3", code=1)
    assert "seed 0" in error["found"]
    program = device.phones / SERIAL / "data/local/tmp/zoexport/runner/zoexport-runner"
    program.write_text("#!/bin/sh\necho 'CANNOT LINK EXECUTABLE'\nexit 1\n")
    error = device.said("train", bundle, "--data", data, "--steps", 3, code=1)
    assert "CANNOT LINK EXECUTABLE" in error["found"]
