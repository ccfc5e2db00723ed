"""Parity with the session in a process of its own, as an NPU's emulator has it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tests.support.compiled import Compiler
from zoexport.compiler.parity import parity
from zoexport.compiler.parity_batches import make_batch
from zoexport.compiler.parity_session import Apart, SessionSide, session_side
from zoexport.core import children
from zoexport.core.errors import ConfigError, LoweringError
from zoexport.session import Bundle

pytestmark = pytest.mark.parity


def _emulated(compiler: Compiler) -> Bundle:
    """A bundle of the CPU that is taken for one of the NPU."""
    bundle = Bundle.open(compiler.bundle("llama", num_queries=1))
    bundle.manifest["backends"] = ["QnnBackend"]
    return bundle


def test_it_answers_as_a_session_in_this_process(compiler: Compiler) -> None:
    bundle = _emulated(compiler)
    batch = make_batch(bundle.settings, bundle.manifest["model"]["vocab_size"], 0)
    with (
        session_side(bundle, "full", eps=0.1) as apart,
        SessionSide(bundle, "full", eps=0.1) as own,
    ):
        assert isinstance(apart, Apart)
        assert apart.num_queries == own.num_queries and apart.floats == own.floats
        assert apart.step(batch)["losses"] == own.step(batch)["losses"]
        for ours, theirs in (
            (apart.state(), own.state()),
            (apart.tensors(), own.tensors()),
            (apart.noise(1), own.noise(1)),
        ):
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_its_errors_are_the_session_s(compiler: Compiler) -> None:
    with pytest.raises(ConfigError, match="eps"), session_side(_emulated(compiler), "full", eps=-1):
        pass


def test_a_fault_of_the_emulator_is_one_sentence(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    monkeypatch.setattr(children, "python", lambda *_: (fault, {}))
    with pytest.raises(LoweringError, match="an emulator that ended with status -11"):
        parity(_emulated(compiler), steps=1, model=None, dump=None, progress=lambda *_: None)
