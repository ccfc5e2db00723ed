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
from zoexport.session import Dataset, Engine, Session

#: Every so manieth byte in a test that is not slow; a prime, so that no field of a fixed length is passed over.
STRIDE = 97


def places(bundle: Path, stride: int) -> Iterator[tuple[Path, int]]:
    """Every byte of every file, or a sample of them that begins elsewhere in each."""
    for number, path in enumerate(sorted(path for path in bundle.rglob("*") if path.is_file())):
        for place in range(number % stride, path.stat().st_size, stride):
            yield path, place


def computed(
    bundle: Path, engine: Callable[[], Engine], dataset: Dataset, trusted: list[str] | None
) -> bytes:
    """All that a run of two steps leaves, with every file of the bundle in use."""
    manifests.read(bundle, verify_files=True)
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
    """How many flips were refused, and how many changed nothing; any other result fails."""
    before = computed(bundle, engine, dataset, trusted)
    refused = same = 0
    for path, place in places(bundle, stride):
        content = path.read_bytes()
        altered = bytearray(content)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        try:
            assert computed(bundle, engine, dataset, trusted) == before, (path.name, place)
            same += 1
        except BundleError:
            refused += 1
        path.write_bytes(content)
    return refused, same


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
    total = sum(1 for _ in places(bundle, stride))
    with make_dataset(examples) as dataset:
        refused, same = flipped(bundle, engine, dataset, trusted, stride)
    sys.stdout.write(
        f"{kind}, signed: {signed}: {refused} of {total} flips refused, {same} changed nothing\n"
    )
    assert refused + same == total
    if signed:
        # Nothing of what is signed; of the signature's own file its first line alone.
        first = (bundle / manifests.SIGNATURE).read_bytes().index(b"\n")
        assert same <= first
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
