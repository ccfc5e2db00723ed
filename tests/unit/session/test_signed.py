"""Signed bundles: what Python and C++ refuse where keys are trusted, which is the same."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import bundles
from tests.support.bundles import LinearModel
from tests.support.signed import Keys, make_keys, sign
from zoexport.api import Bundle
from zoexport.core import manifest as manifests
from zoexport.core import trust
from zoexport.core.errors import BundleError, ConfigError
from zoexport.core.native import runner_path
from zoexport.session import Session

FILE, SIGNATURE = manifests.FILE, manifests.SIGNATURE


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return make_keys(tmp_path / "keys")


@pytest.fixture
def signed(bundle: Path, keys: Keys) -> Path:
    return sign(bundle, keys.secret)


def opened_by_both(bundle: Path, *trusted: Path | str) -> None:
    """Open in Python and in C++; the refusals have the same words."""
    refusals = []
    for open_ in (
        lambda: Bundle.open(bundle, trust=trusted),
        lambda: Session.open(bundle, engine=LinearModel(), trust=trusted).close(),
    ):
        try:
            open_()
        except BundleError as error:
            refusals.append(str(error))
    assert len(refusals) in (0, 2) and len(set(refusals)) < 2, refusals
    if refusals:
        raise BundleError(refusals[0], found="", expected="", fix="")


def test_a_trusted_key_opens(signed: Path, keys: Keys) -> None:
    opened_by_both(signed, keys.pub)
    opened_by_both(signed, keys.secret.public.line)
    opened_by_both(signed, keys.other_pub, keys.pub)
    Session.open(signed, engine=LinearModel()).close()  # signatures bind nobody who asks for none


def altered_manifest(bundle: Path) -> None:
    """A manifest that is right in itself: only the signature tells."""
    content = json.loads((bundle / FILE).read_text())
    content["settings"]["learning_rate"] = 1e9
    content["bundle_id"] = manifests.bundle_id(content)
    (bundle / FILE).write_text(json.dumps(content))


def of_another_bundle(bundle: Path) -> None:
    other = bundles.write_bundle(bundle.parent / "other", num_queries=3)
    (other / SIGNATURE).write_bytes((bundle / SIGNATURE).read_bytes())
    os.replace(other / FILE, bundle / FILE)


def legacy(bundle: Path) -> None:
    lines = (bundle / SIGNATURE).read_bytes().splitlines()
    lines[1] = base64.b64encode(b"Ed" + base64.b64decode(lines[1])[2:])
    (bundle / SIGNATURE).write_bytes(b"\n".join(lines) + b"\n")


def other_comment(bundle: Path) -> None:
    text = (bundle / SIGNATURE).read_text()
    (bundle / SIGNATURE).write_text(text.replace("timestamp:1", "timestamp:2"))


def linked(bundle: Path) -> None:
    os.rename(bundle / SIGNATURE, bundle.parent / "elsewhere")
    os.symlink(bundle.parent / "elsewhere", bundle / SIGNATURE)


def not_even_json(bundle: Path) -> None:
    (bundle / FILE).write_bytes(b"[" * 200_000)


@pytest.mark.parametrize(
    ("alter", "found"),
    [
        (lambda bundle: (bundle / SIGNATURE).unlink(), "no signature"),
        (altered_manifest, "a signature that is not of this manifest.json"),
        (of_another_bundle, "a signature that is not of this manifest.json"),
        (not_even_json, "a signature that is not of this manifest.json"),
        (other_comment, "a signature that is not of this manifest.json"),
        (legacy, "no whole signature"),
        (lambda bundle: (bundle / SIGNATURE).write_bytes(b""), "no whole signature"),
        (lambda bundle: (bundle / SIGNATURE).write_bytes(b"A" * 9000), "no whole signature"),
    ],
)
def test_what_is_refused(
    signed: Path, keys: Keys, alter: Callable[[Path], None], found: str
) -> None:
    alter(signed)
    with pytest.raises(BundleError, match=f"{SIGNATURE}: found {found}"):
        opened_by_both(signed, keys.pub)


def test_another_key_is_named(signed: Path, keys: Keys) -> None:
    number = f"{int.from_bytes(keys.secret.public.number, 'little'):X}"
    with pytest.raises(
        BundleError, match=f"found a signature by the key {number}; expected one by"
    ):
        opened_by_both(signed, keys.other_pub)


def test_a_key_of_the_same_number_does_not_do(signed: Path, keys: Keys) -> None:
    forged = type(keys.secret.public)(keys.secret.public.number, keys.other.public.key)
    with pytest.raises(BundleError, match="not of this manifest"):
        opened_by_both(signed, forged.line)


def test_a_link_in_the_signatures_place_is_refused(signed: Path, keys: Keys) -> None:
    linked(signed)
    with pytest.raises(BundleError, match="a link"):
        Bundle.open(signed, trust=[keys.pub])
    with pytest.raises(BundleError, match="a link"):
        Session.open(signed, engine=LinearModel(), trust=[keys.pub])


def test_every_shorter_signature_is_refused(signed: Path, keys: Keys) -> None:
    whole = (signed / SIGNATURE).read_bytes()
    for size in range(len(whole) - 1):  # without its last line feed it is whole
        (signed / SIGNATURE).write_bytes(whole[:size])
        with pytest.raises(BundleError, match="no whole signature"):
            opened_by_both(signed, keys.pub)


def test_every_flipped_byte_of_a_signature_is_refused_or_a_comment(
    signed: Path, keys: Keys
) -> None:
    whole = (signed / SIGNATURE).read_bytes()
    untrusted = whole.index(b"\n")
    accepted = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        (signed / SIGNATURE).write_bytes(flipped)
        try:
            opened_by_both(signed, keys.pub)
        except BundleError:
            continue
        accepted.append(place)
    # The untrusted comment is nobody's word, behind the words that begin it.
    assert accepted == list(range(len("untrusted comment:"), untrusted))


def test_an_altered_file_is_found_whatever_the_host_skips(signed: Path, keys: Keys) -> None:
    path = signed / "adapter.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    Session.open(signed, engine=LinearModel(), verify=False).close()
    with pytest.raises(BundleError, match=r"adapter\.safetensors.*altered content"):
        Session.open(signed, engine=LinearModel(), verify=False, trust=[keys.pub])


@pytest.mark.parametrize("name", ["tokenizer.json", "model.bin"])
def test_what_the_host_reads_is_hashed_when_a_signed_bundle_is_opened(
    tmp_path: Path, keys: Keys, name: str
) -> None:
    bundle = bundles.write_bundle(tmp_path / "bundle")
    content = json.loads((bundle / FILE).read_text())
    (bundle / "tokenizer.json").write_text("{}")
    program = content["programs"][0]["file"]
    files = [bundle / each for each in (*content["files"], "tokenizer.json")]
    content["tokenizer"] = ["tokenizer.json"]
    for key in ("bundle_id", "files", "schema_version"):
        del content[key]
    manifests.write(bundle, content, files)
    sign(bundle, keys.secret)
    Session.open(bundle, engine=LinearModel(), trust=[keys.pub]).close()
    path = bundle / ("tokenizer.json" if name == "tokenizer.json" else program)
    altered = bytearray(path.read_bytes())
    altered[0] ^= 1
    path.write_bytes(altered)
    Session.open(bundle, engine=LinearModel()).close()
    with pytest.raises(BundleError, match=rf"{path.name}.*altered content"):
        Session.open(bundle, engine=LinearModel(), trust=[keys.pub])


@pytest.mark.parametrize("given", [[], ["nonsense"], ["RWQ="], [""], ["/nowhere.pub"]])
def test_what_is_no_list_of_keys_is_refused(signed: Path, given: list[str]) -> None:
    with pytest.raises(ConfigError):
        Bundle.open(signed, trust=given)
    with pytest.raises(ConfigError):
        Session.open(signed, engine=LinearModel(), trust=given)


def test_the_environment_holds_for_all(
    monkeypatch: pytest.MonkeyPatch, signed: Path, keys: Keys, tmp_path: Path
) -> None:
    monkeypatch.setenv(trust.VARIABLE, f"{keys.other_pub}{os.pathsep}{keys.pub}")
    Bundle.open(signed)
    unsigned = bundles.write_bundle(tmp_path / "unsigned")
    with pytest.raises(BundleError, match="no signature"):
        Bundle.open(unsigned)
    with pytest.raises(BundleError, match="no signature"):
        Session.open(unsigned, engine=LinearModel())
    monkeypatch.setenv(trust.VARIABLE, "nonsense")
    with pytest.raises(ConfigError, match=trust.VARIABLE):
        Bundle.open(signed)


def test_a_bundle_keeps_its_keys(signed: Path, keys: Keys, tmp_path: Path) -> None:
    bundle = Bundle.open(signed, trust=[keys.pub])
    (signed / SIGNATURE).unlink()
    for use in (
        lambda: bundle.evaluate(tmp_path / "data.jsonl"),
        lambda: bundle.train(tmp_path / "data.jsonl", state=tmp_path / "state", steps=1),
        lambda: bundle.export_adapter(tmp_path / "adapter"),
        lambda: bundle.import_adapter(tmp_path / "adapter", state=tmp_path / "state"),
    ):
        with pytest.raises(BundleError, match="no signature"):
            use()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "keys"]


def test_the_runner_checks_it_too(signed: Path, keys: Keys) -> None:
    def said(*trusted: object) -> str:
        line = [runner_path(), "inspect", "--bundle", signed]
        for each in trusted:
            line += ["--trust", each]
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True)
        assert done.returncode in (1, 2)
        return done.stderr

    opened = "found the engine test"  # what it says of a bundle like this one that it opened
    for trusted in ((), (keys.pub,), (keys.secret.public.line,), (keys.other_pub, keys.pub)):
        assert opened in said(*trusted)
    assert "found a signature by the key" in said(keys.other_pub)
    assert "expected minisign public keys" in said("nonsense")
    (signed / SIGNATURE).unlink()
    assert "found no signature" in said(keys.pub)
