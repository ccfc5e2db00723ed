"""Sessions over hand-made bundles, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.support import bundles
from tests.support.bundles import SLOT, LinearModel
from zoexport.session import Dataset, Session


def make_dataset(examples: list[tuple[list[bundles.Candidate], int]]) -> Dataset:
    dataset = Dataset()
    for candidates, target in examples:
        dataset.add(candidates, target)
    return dataset


def write_examples(path: Path, examples: list[tuple[list[bundles.Candidate], int]]) -> Path:
    """The same examples as the runner reads them; gives ``path``."""
    with path.open("w") as file:
        for candidates, target in examples:
            listed = [{"tokens": tokens, "labels": labels} for tokens, labels in candidates]
            file.write(json.dumps({"candidates": listed, "target": target}) + "\n")
    return path


def open_session(
    bundle: Path, state: Path | None = None, *, seed: int | None = None, read_only: bool = False
) -> Session:
    session = Session.open(bundle, engine=LinearModel())
    if state is not None:
        session.attach(state, seed=seed, read_only=read_only)
    return session


def values(session: Session, *, finished: bool = True) -> bundles.Floats:
    flat = np.frombuffer(session.read_slot(SLOT, finished=finished), np.float32)
    return flat.reshape(bundles.RANK, bundles.VOCAB).copy()


def state_bytes(session: Session) -> bytes:
    return (
        values(session).tobytes()
        + repr([session.record(i) for i in range(session.info.steps)]).encode()
    )
