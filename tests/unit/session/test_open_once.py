"""A bundle's files: opened once, within the folder, and an error where they go away meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import split_bundles
from tests.support.bundles import LinearModel
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from tests.unit.session.test_first_order import TEXT
from zoexport.core.errors import BundleError
from zoexport.session import Bundle, Session

ROOT = Path(__file__).parents[3]
ADAPTER = "adapter.safetensors"


def link_of_file(bundle: Path) -> None:
    outside = bundle.parent / "outside"
    os.replace(bundle / ADAPTER, outside)
    os.symlink(outside, bundle / ADAPTER)


def link_within(bundle: Path) -> None:
    os.replace(bundle / ADAPTER, bundle / "inside")
    os.symlink("inside", bundle / ADAPTER)


def link_of_manifest(bundle: Path) -> None:
    outside = bundle.parent / "outside"
    os.replace(bundle / "manifest.json", outside)
    os.symlink(outside, bundle / "manifest.json")


def pipe(bundle: Path) -> None:
    (bundle / ADAPTER).unlink()
    os.mkfifo(bundle / ADAPTER)


@pytest.mark.parametrize(
    ("alter", "found"),
    [
        (link_of_file, "a link"),
        (link_within, "a link"),
        (link_of_manifest, "a link"),
        (pipe, "something that is not a file"),
    ],
)
def test_only_files_of_the_folder_are_opened(
    bundle: Path, alter: Callable[[Path], None], found: str
) -> None:
    alter(bundle)
    with pytest.raises(BundleError, match=found):
        Session.open(bundle, engine=LinearModel())
    with pytest.raises(BundleError, match=found):
        Bundle.open(bundle)


def test_the_folder_itself_may_be_a_link(bundle: Path, tmp_path: Path) -> None:
    os.symlink(bundle, tmp_path / "link")
    Session.open(tmp_path / "link", engine=LinearModel()).close()
    Bundle.open(tmp_path / "link")


CUT = """
import os, sys
from pathlib import Path
from tests.support.sessions import make_dataset
from tests.support.split_bundles import SplitModel
from tests.unit.session.test_first_order import TEXT
from zoexport.core.errors import ZoExportError
from zoexport.session import Session
bundle, other, state = map(Path, sys.argv[1:4])
dataset = make_dataset(TEXT)
with (
    Session.open(bundle, engine=SplitModel()) as session,
    Session.open(other, engine=SplitModel()) as beside,
):
    session.attach(state)
    session.train(dataset, 3)
    beside.train(dataset, 1)
    os.truncate({"bundle": bundle, "state": state}[sys.argv[4]] / sys.argv[5], 0)
    for verb in (lambda: session.train(dataset, 6), lambda: session.read_slot("lora_B.0"), session.save):
        try:
            verb()
        except ZoExportError as error:
            print(type(error).__name__, Path(error.where).name, error.found, sep="|")
    beside.train(dataset, 3)
    print(beside.info.steps)
"""


@pytest.mark.parametrize(
    ("place", "name", "kind"),
    [
        ("bundle", "weights.safetensors", "BundleError"),
        ("state", "work.bin", "StateError"),
    ],
)
def test_a_file_cut_short_in_a_run_is_an_error_and_no_signal(
    tmp_path: Path, place: str, name: str, kind: str
) -> None:
    """Pages of a mapped file that is gone: the kernel sends SIGBUS for each."""
    bundle = split_bundles.write_bundle(tmp_path / "bundle")
    other = shutil.copytree(bundle, tmp_path / "other")
    state = tmp_path / "state"
    golden = tmp_path / "golden"
    content = (bundle / "weights.safetensors").read_bytes()
    child = subprocess.run(
        [sys.executable, "-c", CUT, bundle, other, state, place, name],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert child.returncode == 0, (child.returncode, child.stderr)
    *refusals, beside = child.stdout.splitlines()
    assert refusals == [f"{kind}|{name}|content that cannot be read or written any more"] * 3
    assert beside == "3"
    # The state has the steps that were taken, and none of what came after.
    (bundle / "weights.safetensors").write_bytes(content)
    with make_dataset(TEXT) as dataset, Session.open(bundle, engine=SplitModel()) as session:
        session.attach(golden)
        session.train(dataset, 3)
        three = bytes(session.read_slot("lora_B.0"))
        with Session.open(bundle, engine=SplitModel()) as again:
            again.attach(state)
            assert again.info.steps == 3 and bytes(again.read_slot("lora_B.0")) == three
            again.train(dataset, 5)
            session.train(dataset, 5)
            assert bytes(again.read_slot("lora_B.0")) == bytes(session.read_slot("lora_B.0"))


def test_what_was_opened_is_what_is_used(tmp_path: Path) -> None:
    """A file that takes the weights' name after they were mapped is never read."""
    bundle = split_bundles.write_bundle(tmp_path / "bundle")
    with make_dataset(TEXT) as dataset, Session.open(bundle, engine=SplitModel()) as session:
        before = session.evaluate(dataset).loss
        (tmp_path / "another").write_bytes(b"x" * 100)
        os.replace(tmp_path / "another", bundle / "weights.safetensors")
        assert session.evaluate(dataset).loss == before
