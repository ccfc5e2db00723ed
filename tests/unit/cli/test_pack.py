"""``zoexport pack`` and ``unpack``: a bundle as one file, there and back, and every file that is none."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import bundles
from tests.support.signed import make_keys, sign
from zoexport.cli.main import run
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError, Cancelled
from zoexport.core.native import native_folder
from zoexport.session import Bundle
from zoexport.tools.packing import pack, unpack

SIGNATURE = manifests.SIGNATURE


def quiet(_phase: str, _done: float | None) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """One with a file in a folder, as Core ML's packages are."""
    made = bundles.write_bundle(tmp_path / "model.bundle")
    content = json.loads((made / manifests.FILE).read_text())
    (made / "deep" / "er").mkdir(parents=True)
    (made / "deep" / "er" / "weights.bin").write_bytes(bytes(range(256)) * 9000)
    listed = [made / name for name in (*content.pop("files"), "deep/er/weights.bin")]
    for key in ("schema_version", "bundle_id"):
        content.pop(key)
    manifests.write(made, content, listed)
    return made


@pytest.fixture
def packed(bundle: Path, tmp_path: Path) -> Path:
    pack(Bundle.open(bundle), tmp_path / "model.zobundle", force=False, progress=quiet)
    return tmp_path / "model.zobundle"


def test_there_and_back(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = make_keys(tmp_path / "keys")
    sign(bundle, keys.secret)
    assert run(["pack", str(bundle), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "model.zobundle" and told["signed"] is True
    first = Path("model.zobundle").read_bytes()
    assert told["bytes"] == len(first) < sum(map(len, contents(bundle).values())) + 4096
    assert run(["pack", str(bundle)]) == 2  # it is there
    assert run(["pack", str(bundle), "--force"]) == 0
    assert Path("model.zobundle").read_bytes() == first
    assert zipfile.ZipFile("model.zobundle").testzip() is None
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    capsys.readouterr()
    line = ["unpack", "../model.zobundle", "--trust", str(keys.pub), "--json"]
    assert run(line) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bundle"] == "model.bundle" and told["signed"] is True
    assert contents(Path("model.bundle")) == contents(bundle)
    assert run(line) == 2  # it is there
    Path("model.bundle/more").write_text("old")
    assert run([*line, "--force"]) == 0
    assert contents(Path("model.bundle")) == contents(bundle)
    assert sorted(path.name for path in Path().iterdir()) == ["model.bundle"]


def test_an_altered_bundle_is_not_packed(bundle: Path, tmp_path: Path) -> None:
    (bundle / "deep" / "er" / "weights.bin").write_bytes(bytes(256 * 9000))
    with pytest.raises(BundleError, match=r"weights\.bin: found SHA-256"):
        pack(Bundle.open(bundle), tmp_path / "new.zobundle", force=False, progress=quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bundle"]


@pytest.mark.parametrize("signer", ["nobody", "another"])
def test_what_no_trusted_key_signed_is_not_unpacked(
    bundle: Path, tmp_path: Path, signer: str
) -> None:
    keys = make_keys(tmp_path / "keys")
    if signer == "another":
        sign(bundle, keys.other)
    file = tmp_path / "model.zobundle"
    pack(Bundle.open(bundle), file, force=False, progress=quiet)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BundleError, match=f"^{file}, {SIGNATURE}: "):
        unpack(file, tmp_path / "out", force=False, trust=[keys.pub], progress=quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_wish_to_stop_leaves_nothing(packed: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    shares: list[float | None] = []

    def press(_phase: str, done: float | None) -> None:
        shares.append(done)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Cancelled):
        unpack(packed, tmp_path / "out", force=False, progress=press)
    assert len(shares) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_what_an_ended_process_left_is_removed(packed: Path, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.unpacking" / "half").mkdir(parents=True)
    (tmp_path / ".out.unpacking" / "manifest.json").write_text("{")
    unpack(packed, tmp_path / "out", force=False, progress=quiet)
    assert contents(tmp_path / "out") == contents(bundle)
    assert not (tmp_path / ".out.unpacking").exists()


def rewritten(packed: Path, change: Callable[[dict[str, bytes]], Any], kind: int = 0) -> None:
    with zipfile.ZipFile(packed) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(packed, "w", kind) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def cut(packed: Path, size: int) -> None:
    packed.write_bytes(packed.read_bytes()[:size])


def commented(packed: Path) -> None:
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = b"hello"


def twice(packed: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("manifest.json", b"{}")


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda file: file.write_bytes(b""), "no ZIP archive"),
    "text": (lambda file: file.write_text("hello " * 20), "no ZIP archive"),
    "cut": (lambda file: cut(file, file.stat().st_size // 2), "no ZIP archive, or one"),
    "compressed": (lambda file: rewritten(file, lambda _: None, 8), "compressed or encrypted"),
    "more": (lambda file: rewritten(file, lambda f: f.update(more=b"1")), "does not list"),
    "outside": (lambda file: rewritten(file, lambda f: f.update({"../x": b"1"})), "does not list"),
    "no manifest": (lambda file: rewritten(file, lambda f: f.pop("manifest.json")), "no such file"),
    "bad manifest": (
        lambda file: rewritten(file, lambda f: f.update({"manifest.json": b"{"})),
        "not JSON",
    ),
    "missing": (lambda file: rewritten(file, lambda f: f.pop("deep/er/weights.bin")), "no such"),
    "altered": (
        lambda file: rewritten(file, lambda f: f.update({"deep/er/weights.bin": bytes(2304000)})),
        "altered content",
    ),
    "shorter": (
        lambda file: rewritten(file, lambda f: f.update({"deep/er/weights.bin": b"1"})),
        "1 bytes",
    ),
    "comment": (commented, "no ZIP archive"),
    "twice": (twice, "manifest.json twice"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_packed_bundle_is_one_message(packed: Path, tmp_path: Path, bad: str) -> None:
    change, found = BAD[bad]
    change(packed)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(BundleError) as error:
        unpack(packed, tmp_path / "out", force=False, progress=quiet)
    assert found in error.value.found, error.value
    assert str(packed) in error.value.where
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_file_that_is_there_stays_where_the_new_one_is_bad(packed: Path, tmp_path: Path) -> None:
    unpack(packed, tmp_path / "out", force=False, progress=quiet)
    good = contents(tmp_path / "out")
    rewritten(packed, lambda f: f.update({"deep/er/weights.bin": bytes(2304000)}))
    with pytest.raises(BundleError, match="altered content"):
        unpack(packed, tmp_path / "out", force=True, progress=quiet)
    assert contents(tmp_path / "out") == good


def test_sizes_beyond_32_bits_are_read(packed: Path, bundle: Path, tmp_path: Path) -> None:
    """An archive with ZIP64's fields, as one of 4 GiB has."""
    with zipfile.ZipFile(packed) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
                entry.write(content)
    raw = bytearray(packed.read_bytes())
    # The directory as a large one is described: all in ZIP64's record.
    end = len(raw) - 22
    count, size, offset = struct.unpack_from("<HII", raw, end + 10)
    record = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<IIQI", 0x07064B50, 0, end, 1)
    raw[end + 8 : end + 20] = struct.pack("<HHII", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    packed.write_bytes(raw[:end] + record + locator + raw[end:])
    unpack(packed, tmp_path / "out", force=False, progress=quiet)
    assert contents(tmp_path / "out") == contents(bundle)


def test_altered_archives_end_in_a_message_or_are_the_same(packed: Path, tmp_path: Path) -> None:
    """Any altered byte outside of what nothing reads: dates, versions, attributes and checksums of ZIP."""
    whole = packed.read_bytes()
    expected: dict[str, bytes] | None = None
    generator = random.Random(5)
    interesting = [*range(len(whole) - 900, len(whole)), *range(60)]
    refused = 0
    for place in [*generator.sample(interesting, 250), *generator.sample(range(len(whole)), 50)]:
        altered = bytearray(whole)
        altered[place] ^= generator.randrange(1, 256)
        packed.write_bytes(altered)
        try:
            unpack(packed, tmp_path / "out", force=True, progress=quiet)
        except BundleError:
            refused += 1
            continue
        found = contents(tmp_path / "out")
        expected = expected or found
        assert found == expected
        shutil.rmtree(tmp_path / "out")
    assert refused > 100


def test_the_runner_unpacks_too(bundle: Path, packed: Path, tmp_path: Path) -> None:
    def unpacked(*options: str) -> tuple[int, dict[str, Any]]:
        line = ["unpack", "--file", packed, "--bundle", tmp_path / "there", "--json", *options]
        done = subprocess.run(
            [native_folder() / "zoexport-runner", *map(str, line)], capture_output=True
        )
        return done.returncode, json.loads(done.stdout)

    assert unpacked() == (0, {"bundle": str(tmp_path / "there")})
    assert contents(tmp_path / "there") == contents(bundle)
    code, told = unpacked()
    assert code == 2 and told["error"]["found"] == "something that is there"
    assert unpacked("--force")[0] == 0
    keys = make_keys(tmp_path / "keys")
    code, told = unpacked("--force", "--trust", str(keys.pub))
    assert code == 1 and "no signature" in told["error"]["found"]
    assert contents(tmp_path / "there") == contents(bundle)
