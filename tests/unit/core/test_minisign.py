"""Keys and signatures: the same files as those of the minisign tool, both ways."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from tests.support.bundles import write_bundle
from zoexport.core import minisign
from zoexport.core.errors import BundleError, ConfigError
from zoexport.core.manifest import FILE
from zoexport.session import Bundle


def tool(*arguments: object, password: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["minisign", *map(str, arguments)], input=password, capture_output=True, text=True
    )


def no_password() -> str:
    raise AssertionError("a key without a password")


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """The file of a bundle that is signed."""
    return write_bundle(tmp_path / "bundle") / FILE


def opens(signed: Path, key: minisign.PublicKey) -> bool:
    """Whether the library takes the signature beside a manifest; an error says why not."""
    return bool(Bundle.open(signed.parent, trust=[key.line]))


def test_the_tool_checks_our_signatures(tmp_path: Path, signed: Path) -> None:
    key = minisign.generate()
    public = minisign.write_key(key, tmp_path / "a.key", None)
    content = signed.read_bytes()
    Path(f"{signed}.minisig").write_text(minisign.sign(key, content, signed.name))
    done = tool("-V", "-p", public, "-m", signed)
    assert done.returncode == 0, done.stderr
    assert f"file:{signed.name}\thashed" in done.stdout
    assert tool("-V", "-P", key.public.line, "-m", signed).returncode == 0
    signed.write_bytes(content + b" ")
    assert tool("-V", "-p", public, "-m", signed).returncode != 0


def test_we_check_the_tools_signatures(tmp_path: Path, signed: Path) -> None:
    key, public = tmp_path / "t.key", tmp_path / "t.pub"
    assert tool("-G", "-W", "-s", key, "-p", public).returncode == 0
    assert tool("-S", "-s", key, "-m", signed, "-t", "été, by the tool").returncode == 0
    (theirs,) = minisign.parse_public(public.read_bytes(), "t.pub")
    assert opens(signed, theirs)
    assert minisign.read_key(key, no_password).public == theirs
    assert theirs.file == public.read_text()
    # The form of before 2020, of whole files.
    assert tool("-S", "-l", "-s", key, "-m", signed).returncode == 0
    with pytest.raises(BundleError, match="expected a signature of minisign's, prehashed"):
        opens(signed, theirs)


def test_the_tool_signs_with_our_keys(tmp_path: Path, signed: Path) -> None:
    key = minisign.generate()
    minisign.write_key(key, tmp_path / "a.key", None)
    done = tool("-S", "-W", "-s", tmp_path / "a.key", "-m", signed)
    assert done.returncode == 0, done.stderr
    assert opens(signed, key.public)


@pytest.mark.slow
def test_passwords_are_the_tools(tmp_path: Path, signed: Path) -> None:
    key = minisign.generate()
    minisign.write_key(key, tmp_path / "a.key", "pässword")
    done = tool("-S", "-s", tmp_path / "a.key", "-m", signed, password="pässword\n")
    assert done.returncode == 0, done.stderr
    assert opens(signed, key.public)
    theirs, public = tmp_path / "t.key", tmp_path / "t.pub"
    assert tool("-G", "-s", theirs, "-p", public, password="two\ntwo\n").returncode == 0
    (listed,) = minisign.parse_public(public.read_bytes(), "t.pub")
    assert minisign.read_key(theirs, lambda: "two").public == listed


def test_a_password_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(minisign, "_OPERATIONS", 1 << 15)
    monkeypatch.setattr(minisign, "_MEMORY", 1 << 20)
    key, path = minisign.generate(), tmp_path / "release.key"
    public = minisign.write_key(key, path, "secret")
    assert public == tmp_path / "release.pub"
    assert minisign.read_key(path, lambda: "secret") == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert key.seed not in base64.b64decode(path.read_text().splitlines()[1])
    with pytest.raises(ConfigError, match="found another password"):
        minisign.read_key(path, lambda: "Secret")
    with pytest.raises(ConfigError, match="already there"):
        minisign.write_key(key, path, "secret")
    monkeypatch.setattr(minisign, "_MEMORY", 1 << 19)
    with pytest.raises(ConfigError, match="costs 1048576 bytes"):
        minisign.read_key(path, lambda: "secret")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "no secret key"),
        (b"untrusted comment: x\nAAAA\n", "no secret key"),
        (b"untrusted comment: x\n" + base64.b64encode(bytes(158)) + b"\n", "no secret key"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=found):
        minisign.read_key(path, no_password)
    with pytest.raises(ConfigError, match="no public key"):
        minisign.parse_public(content, "a.pub")


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    key, path = minisign.generate(), tmp_path / "a.key"
    minisign.write_key(key, path, None)
    comment, line = path.read_bytes().splitlines()
    content = bytearray(base64.b64decode(line))
    for place in (60, 100, 150):  # the key's number or seed, the public key, the sum
        content[place] ^= 1
        path.write_bytes(comment + b"\n" + base64.b64encode(content) + b"\n")
        with pytest.raises(ConfigError, match="a damaged key"):
            minisign.read_key(path, no_password)
        content[place] ^= 1
    with pytest.raises(ConfigError, match="no such file"):
        minisign.read_key(tmp_path / "nothing", no_password)


def test_keys_are_not_shown_and_differ() -> None:
    one, two = minisign.generate(), minisign.generate()
    assert one.seed != two.seed and one.public.number != two.public.number
    assert one.seed.hex() not in repr(one) and repr(one.seed) not in repr(one)
