"""A run in parts is the run in one piece, of every method, and of every engine that trains by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.engine_parity import data
from tests.support.tiers import slow_after
from zoexport.session import Session

pytestmark = pytest.mark.parity
FULL = {"train": "full", "learning_rate": 1e-3, "eps": 1e-2}
MOMENTS = {"horizon": 4, "learning_rate": 1e-3, "num_queries": 2}
INT4 = {"weights": "int4"}
#: Method, target, settings.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("spzo", "host", {"split": "head", "perturbations": "2,4", **FULL}),
    ("quzo", "host", {"num_queries": 2, **INT4}),
    ("senszoq", "host", {"num_queries": 2, **INT4}),
    ("fzoo", "host", {}),
    ("fzoo", "ios-mlx", {}),
    ("prge", "host", {"optimizer": "adam", **MOMENTS}),
    ("fzoo", "host", {"optimizer": "muon", **MOMENTS}),
    ("mebp", "ios-mlx", INT4),
    ("prge", "ios-mlx", INT4),
    ("mebp", "android-gpu", INT4),
    ("mezo", "ios-mlx", INT4),
    ("spzo", "android-gpu", INT4),
    ("mebp", "android-gpu", {"compute": "fp16", **INT4}),
]
STEPS = 6


def slots_of(session: Session) -> dict[str, bytes]:
    return {slot.name: bytes(session.read_slot(slot.name)) for slot in session.slots()}


@pytest.mark.parametrize(("method", "target", "settings"), slow_after(10, CASES))
def test_a_run_in_parts_is_the_same_run(
    compiler: Compiler, tmp_path: Path, method: str, target: str, settings: dict[str, Any]
) -> None:
    """The log and all values to the bit, and those that follow from a zeroth-order log alone."""
    bundle = compiler.bundle("llama_tied", method, target, lr_scheduler_type="constant", **settings)
    found: dict[str, dict[str, bytes]] = {}
    for name, parts in (("whole", [STEPS]), ("parts", [1, 3, STEPS])):
        for total in parts:
            with Session.open(bundle) as session, data() as examples:
                session.attach(tmp_path / name)
                before = slots_of(session)
                session.train(examples, total)
                found[name] = slots_of(session)
                assert found[name] != before
    assert found["parts"] == found["whole"]
    logs = [(tmp_path / name / "trajectory.log").read_bytes() for name in found]
    assert logs[0] == logs[1]
    with Session.open(bundle) as session:
        session.attach(tmp_path / "parts", read_only=True)
        assert slots_of(session) == found["whole"]
        if method != "mebp":
            replayed = {slot: bytes(session.replay_slot(slot, STEPS)) for slot in found["whole"]}
            assert replayed == found["whole"]
            assert len(logs[0]) == 64 + STEPS * (20 + 4 * session.info.num_queries)
