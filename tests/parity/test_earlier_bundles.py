"""Bundles and states of an earlier compiler: read, evaluated, trained on, exported, compared.

``tests/data/bundles-0.1.0.tar.xz`` was made at commit 5c7c5f7 from the tiny model ``llama_tied``. Of each method it has
a bundle for ``host`` with rows of 24 tokens, its state after three steps, and the losses that the code of that commit
then gave.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import slow_after
from tests.support.tiny_models import save_tiny
from zoexport.parity import parity
from zoexport.session import Session
from zoexport.train import evaluate, train
from zoexport.transfer import export_adapter

pytestmark = pytest.mark.parity
ARCHIVE = Path(__file__).parents[1] / "data" / "bundles-0.1.0.tar.xz"
METHODS = ("prge", "mezo", "mebp", "spzo", "quzo", "senszoq")
#: Another processor adds in another order.
CLOSE = {"rel": 1e-5}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def silent(*_: Any) -> None:
    pass


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_on(earlier: Path, tmp_path: Path, method: str) -> None:
    expected = json.loads((earlier / "expected.json").read_text())[method]
    bundle, data = earlier / method / "bundle", earlier / "data.jsonl"
    state = Path(shutil.copytree(earlier / method / "state", tmp_path / "state"))
    before = evaluate(bundle, data=data, state=state, settings={}, phase=silent)
    assert before["loss"] == pytest.approx(expected["evaluated"], **CLOSE)
    found = export_adapter(bundle, state=state, kind=None, output=tmp_path / "adapter", force=False)
    assert found["steps"] == 3 and list((tmp_path / "adapter").iterdir())
    after = train(
        bundle, data=data, state=state, steps=5, settings={}, progress=silent, phase=silent
    )
    assert after["losses"] == pytest.approx(expected["losses"], **CLOSE)
    with Session.open(bundle) as session:
        session.attach(state, read_only=True)
        assert session.info.steps == 5


@pytest.mark.parametrize("method", slow_after(1, METHODS))
def test_it_agrees_with_the_reference(earlier: Path, tmp_path: Path, method: str) -> None:
    model = save_tiny("llama_tied", tmp_path / "model")
    found = parity(earlier / method / "bundle", steps=2, model=str(model), progress=silent)
    assert found["passed"] is True, found
