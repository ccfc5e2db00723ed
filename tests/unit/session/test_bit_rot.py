"""Every byte of a bundle flipped, one at a time: it is refused, or what it computes is what it computed before."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import bundles, split_bundles
from tests.support.bundles import LinearModel
from tests.support.sessions import make_dataset
from tests.support.signed import make_keys, sign
from tests.support.split_bundles import SplitModel
from tests.unit.session.test_first_order import TEXT
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError
from zoexport.session import Bundle, Dataset, Engine, Session

#: Every so manieth byte in a test that is not slow; a prime, so that no field of a fixed length is passed over.
STRIDE = 197


def places(bundle: Path, stride: int) -> Iterator[tuple[Path, int]]:
    """Every byte of every file, or a sample of them that begins elsewhere in each."""
    for number, path in enumerate(sorted(path for path in bundle.rglob("*") if path.is_file())):
        for place in range(number % stride, path.stat().st_size, stride):
            yield path, place


def computed(
    bundle: Path, engine: Callable[[], Engine], dataset: Dataset, trusted: list[str] | None
) -> bytes:
    """All that a run of two steps leaves."""
    with Session.open(bundle, engine=engine(), trust=trusted) as session:
        session.train(dataset, 2)
        values = b"".join(bytes(session.read_slot(slot.name)) for slot in session.slots())
        return values + repr([session.record(step) for step in range(2)]).encode()


def flipped(
    bundle: Path,
    engine: Callable[[], Engine],
    dataset: Dataset,
    trusted: list[str] | None,
    stride: int,
) -> tuple[int, int]:
    """How many flips the session and how many Python refused; where they do not, all must be as before."""
    before = computed(bundle, engine, dataset, trusted)
    known = Bundle.open(bundle).manifest
    by_session = by_python = 0
    for path, place in places(bundle, stride):
        content = path.read_bytes()
        altered = bytearray(content)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        try:
            assert computed(bundle, engine, dataset, trusted) == before, (path.name, place)
        except BundleError:
            by_session += 1
        try:
            again = Bundle.open(bundle, trust=trusted)
            again.verify()
            assert again.manifest == known, (path.name, place)
        except BundleError:
            by_python += 1
        path.write_bytes(content)
    return by_session, by_python


def check(folder: Path, kind: str, signed: bool, stride: int) -> None:
    engine: Callable[[], Engine]
    if kind == "whole":
        bundle, engine = bundles.write_bundle(folder / "bundle"), LinearModel
        examples = bundles.text_examples()
    else:
        bundle, engine = split_bundles.write_bundle(folder / "bundle"), SplitModel
        examples = TEXT
    trusted = None
    if signed:
        keys = make_keys(folder / "keys")
        sign(bundle, keys.secret)
        trusted = [keys.secret.public.line]
    found = [path.name for path, _ in places(bundle, stride)]
    total = len(found)
    listed = {program["file"] for program in Bundle.open(bundle).manifest["programs"]}
    programs = sum(1 for name in found if name in listed)
    with make_dataset(examples) as dataset:
        by_session, by_python = flipped(bundle, engine, dataset, trusted, stride)
    sys.stdout.write(
        f"{kind}, signed: {signed}: of {total} flips the session refused {by_session} and Python {by_python}; "
        "the others changed nothing\n"
    )
    # Nothing is passed over but what says nothing: of a signature's file its first line, of a manifest's nothing; and
    # the session leaves programs to this host's engine, which it does not where keys are trusted.
    comment = (bundle / manifests.SIGNATURE).read_bytes().index(b"\n") if signed else 0
    assert by_python >= total - comment
    assert by_session >= total - comment - (0 if signed else programs)
    shutil.rmtree(bundle)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", ["whole", "split"])
def test_flipped_bytes_of_a_sample_are_never_a_silent_wrong_result(
    tmp_path: Path, kind: str, signed: bool
) -> None:
    check(tmp_path, kind, signed, STRIDE)


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_no_flipped_byte_is_a_silent_wrong_result(tmp_path: Path, signed: bool) -> None:
    check(tmp_path, "whole", signed, 1)
