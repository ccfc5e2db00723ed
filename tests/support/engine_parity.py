"""Parity that passes, steps over its batches, and rows of unequal lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_models import VOCAB_SIZE
from zoexport.api import Bundle
from zoexport.compiler.parity_batches import make_batch
from zoexport.session import Dataset, Session, Step

EXAMPLES = [
    [(7 * number + 3 * place) % 300 for place in range(length + 1)]
    for number, length in enumerate((5, 24, 11))
]


def passed(bundle: Path, steps: int = 4) -> dict[str, Any]:
    """Return the report of parity without progress, which passes."""
    report = Bundle.open(bundle).parity(steps=steps).as_dict()
    assert report["passed"] is True, report
    return report


def compare(bundle: Path, engine: str, steps: int) -> dict[str, Any]:
    """Return the report of parity, which passes with the losses of fp32 in a session with ``engine``."""
    report = passed(bundle, steps)
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["runner"] == f"session ({engine})"
    return report


def take_steps(session: Session, bundle: Path, steps: int) -> list[Step]:
    """Take steps over one of parity's batches."""
    settings = json.loads((bundle / "manifest.json").read_text())["settings"]
    batch = make_batch(settings, VOCAB_SIZE, 0)
    with Dataset() as dataset:
        for example in batch:
            dataset.add([(one.tokens, one.labels) for one in example.candidates], example.target)
        return [session.step(dataset, range(len(batch))) for _ in range(steps)]


def trained(bundle: Path, state: Path, steps: int) -> Path:
    """Return a state after so many of these steps."""
    with Session.open(bundle) as session:
        session.attach(state)
        take_steps(session, bundle, steps)
        session.save()
    return state


def data() -> Dataset:
    made = Dataset()
    for tokens in EXAMPLES:
        made.add([(tokens[:-1], tokens[1:])], 0)
    return made
