"""Numbers that are not finite end a run with its last good state, and never begin one."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles, split_bundles
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import open_session, state_bytes
from tests.support.split_bundles import SplitModel
from zoexport.core.errors import ConfigError, DivergedError
from zoexport.session import Dataset, Session

SLOTS = [n for n, (role, _) in split_bundles.slots().items() if role == "trainable"]


class Poisoned(SplitModel):
    """Gives gradients with a number that is not finite in the given step; the losses stay finite."""

    def __init__(self, value: float, step: int) -> None:
        super().__init__()
        self.value, self.step = value, step
        self.session: Session | None = None

    def __call__(self, program: str, inputs: Any, outputs: Any) -> None:
        super().__call__(program, inputs, outputs)
        if program.startswith("gate.backward") and self.session is not None and "B" in outputs:
            outputs["B"].data[0] = self.value


def content(session: Session) -> bytes:
    values = b"".join(session.read_slot(name).tobytes() for name in SLOTS)
    return values + repr([session.record(i) for i in range(session.info.steps)]).encode()


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_gradients(tmp_path: Path, dataset: Dataset, value: float, clip: float) -> None:
    bundle, state = split_bundles.write_bundle(tmp_path / "bundle"), tmp_path / "state"
    engine = Poisoned(value, 3)
    with Session.open(bundle, engine=engine) as session:
        session.attach(state)
        session.configure(max_grad_norm=clip)
        session.train(dataset, 3)
        good = content(session)
        if clip == 0 or not math.isfinite(value):  # clipping brings the largest finite ones back
            engine.session = session
            for _ in range(2):
                with pytest.raises(DivergedError, match=r"step 3: found .* that is not finite"):
                    session.train(dataset, 6)
                assert content(session) == good
    with Session.open(bundle, engine=SplitModel()) as session:
        session.attach(state)
        assert content(session) == good
        session.train(dataset, 6)
        resumed = content(session)
    with Session.open(bundle, engine=SplitModel()) as session:
        session.configure(max_grad_norm=clip)
        session.train(dataset, 6)
        assert content(session) == resumed


class Steep(LinearModel):
    """The two losses of a direction differ by ``apart`` from step ``start`` on."""

    def __init__(self, start: int, apart: float) -> None:
        super().__init__()
        self.start, self.apart = start, apart

    def __call__(self, program: str, inputs: Any, outputs: Any) -> None:
        super().__call__(program, inputs, outputs)
        if program == "train" and inputs["step"].data[0] >= self.start:
            copies, entries = outputs["logprobs"].shape
            for place in range(copies * entries):
                if place // entries % 2 == 0:  # a copy along +z
                    outputs["logprobs"].data[place] -= self.apart


@pytest.mark.parametrize(("apart", "found"), [(2e38, "not finite"), (1e32, "could move values")])
def test_projected_gradients(
    bundle: Path, tmp_path: Path, dataset: Dataset, apart: float, found: str
) -> None:
    state = tmp_path / "state"
    with Session.open(bundle, engine=Steep(0, apart)) as session:
        session.attach(state)
        with pytest.raises(DivergedError, match=f"step 0: found .*{found}"):
            session.train(dataset, 4)
        assert session.info.steps == 0
        assert np.isfinite(np.frombuffer(session.read_slot(SLOT), np.float32)).all()
    with open_session(bundle, state) as session, open_session(bundle) as other:
        session.train(dataset, 5)
        other.train(dataset, 5)
        assert state_bytes(session) == state_bytes(other)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_written_values(bundle: Path, tmp_path: Path, value: float) -> None:
    values = np.linspace(-1, 1, bundles.RANK * bundles.VOCAB, dtype=np.float32)
    bad = values.copy()
    bad[7] = value
    with open_session(bundle, tmp_path / "state") as session:
        session.write_slot(SLOT, values)
        with pytest.raises(ConfigError, match="not finite in float32"):
            session.write_slot(SLOT, bad)
        assert session.read_slot(SLOT).tobytes() == values.tobytes()
        session.save()
    with open_session(bundle, tmp_path / "state") as session:
        assert session.read_slot(SLOT).tobytes() == values.tobytes()


def test_records_that_are_followed(bundle: Path, dataset: Dataset) -> None:
    import dataclasses

    with open_session(bundle) as session:
        session.train(dataset, 1)
        record = session.record(0)
    change: Callable[..., Any] = dataclasses.replace
    with open_session(bundle) as session:
        huge = change(record, gradients=(3e38,) * len(record.gradients))
        with pytest.raises(ConfigError, match="could move values"):
            session.follow([huge])
        session.follow([record])
