"""Training that fails before its first step leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import LinearModel
from tests.support.compiled import Compiler
from tests.support.sessions import open_session
from zoexport.api import Bundle
from zoexport.core.errors import BundleError, ConfigError, StateError
from zoexport.session import Dataset, Session


def silent(*_: Any) -> None:
    pass


def broken(program: str, inputs: Any, outputs: Any) -> None:
    raise RuntimeError("the device is gone")


@pytest.mark.parametrize("method", ["prge", "mebp"])
def test_an_altered_program_is_found_before_a_state_is_made(
    compiler: Compiler, tmp_path: Path, method: str
) -> None:
    made = compiler.bundle("llama_tied", method)
    bundle, state = Path(shutil.copytree(made, tmp_path / "bundle")), tmp_path / "new" / "state"
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "no", "completion": " good"}\n')
    manifest = json.loads((bundle / "manifest.json").read_text())
    program = bundle / manifest["programs"][-1]["file"]
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)
    with pytest.raises(BundleError, match=f"{program.name}: found altered content"):
        Bundle.open(bundle).train(data, state=state, steps=2)
    assert not state.parent.exists()


def test_an_engine_that_fails_at_once(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "new" / "state"
    with Session.open(bundle, engine=broken) as session:
        session.attach(state)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the device is gone"):
                session.train(dataset, 3)
        assert (state / "state.json").exists()
    assert not state.parent.exists()


def test_settings_that_are_refused(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    with open_session(bundle, state) as session, pytest.raises(ConfigError):
        session.configure(learning_rate=-1.0)
    assert not state.exists()
    with open_session(bundle, state) as session:
        with pytest.raises(ConfigError):
            session.configure(learning_rate=-1.0)
        session.train(dataset, 1)
    assert (state / "state.json").exists()


def test_what_was_there_stays(bundle: Path, tmp_path: Path, dataset: Dataset) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "work.bin").write_text("not ours")
    (state / "notes").write_text("mine")
    with Session.open(bundle, engine=broken) as session:
        session.attach(state)
        with pytest.raises(RuntimeError):
            session.train(dataset, 3)
    assert sorted(path.name for path in state.iterdir()) == ["notes", "work.bin"]
    # A state that an earlier session made is not this one's to remove.
    open_session(bundle, state).close()
    with Session.open(bundle, engine=broken) as session:
        session.attach(state)
        with pytest.raises(RuntimeError):
            session.train(dataset, 3)
        with pytest.raises(StateError, match="holds"):
            Session.open(bundle, engine=LinearModel()).attach(state)
    assert (state / "state.json").exists()
