"""The runner that needs nothing on a phone: pushed, trained, asked, compared, pulled; under qemu without a sysroot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.phones import SERIAL, install_phones, said
from zoexport.core.errors import DeviceError
from zoexport.tools.device.runner import LAUNCHER, PROGRAM, make_runner

pytestmark = pytest.mark.aarch64

BUILD = Path(__file__).parents[2] / "build" / "aarch64" / "native" / "runtime_ops"
DATA = [{"prompt": f"The film number {n}", "completion": " was great"} for n in range(6)]


def test_the_whole_life_on_a_phone_without_an_ndk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    phones = install_phones(tmp_path, monkeypatch, "arm64-v8a")
    # No -L: nothing of this machine's libraries for ARM is seen.
    monkeypatch.setenv(LAUNCHER, "qemu-aarch64 -cpu max,sme=off")
    # The build of the checkout is found from every folder.
    monkeypatch.chdir(tmp_path)
    runner = tmp_path / "runner"
    made = said(capfd, "runner", "-o", runner)
    assert {"zoexport-runner", PROGRAM, "libzoexport.so", "libc.so.6"} <= set(made["files"])
    assert made["bytes"] < 60e6
    bundle = Compiler().bundle(
        "llama_tied", "mebp", weights="int4", **{"generate": True, "generate.context": 64}
    )
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in DATA))
    train = ("train", bundle, "--data", data, "--steps")
    first = said(capfd, *train, 3, "--runner", runner)
    assert first["steps"] == 3 and first["serial"] == SERIAL
    assert said(capfd, *train, 5)["losses"][:3] == first["losses"]
    texts = [
        said(capfd, "generate", bundle, "--prompt", "The film", "--max-new-tokens", 4, *given)
        for given in ([], ["--run", "run"])
    ]
    assert [len(text["tokens"]) for text in texts] == [4, 4]
    assert said(capfd, "parity", bundle, "--steps", 2)["passed"] is True
    state = tmp_path / "state"
    assert said(capfd, "pull", bundle, "--state", state)["steps"] == 5
    there = phones / SERIAL / "data/local/tmp/zoexport"
    assert (there / "runner" / "zoexport-runner").stat().st_mode & 0o111
    missing = said(capfd, "generate", bundle, "--prompt", "a", "--run", "other", code=1)
    assert missing["expected"] == "the run 'other' of this bundle"


def test_what_is_missing_is_one_message(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(DeviceError, match="no zoexport-runner; expected a build for 64-bit ARM"):
        make_runner(output, build=tmp_path, force=False)
    copy = tmp_path / "build"
    copy.mkdir()
    shutil.copy(BUILD / "zoexport-runner", copy)
    with pytest.raises(DeviceError, match=r"library lib.*: found no such file"):
        make_runner(output, build=copy, sysroot=tmp_path, force=False)
    (copy / "zoexport-runner").write_text("text")
    with pytest.raises(DeviceError, match="readelf"):
        make_runner(output, build=copy, force=False)
    assert not output.exists()
