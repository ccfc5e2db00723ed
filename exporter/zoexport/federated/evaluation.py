"""Evaluating versions of a federation's model on held-out examples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoexport.core.progress import Progress
from zoexport.federated import models
from zoexport.federated.models import Model
from zoexport.session import Bundle, Dataset, Session
from zoexport.session.data import reading


def reading_of(bundle: Bundle, loss: str) -> dict[str, Any]:
    """Return how a federation reads examples: as the bundle's runs do, one per row."""
    return {**reading(bundle.settings), "loss": loss, "pack": False}


class Evaluator:
    """Evaluates models of one bundle on one dataset."""

    def __init__(self, session: Session, dataset: Dataset) -> None:
        self._session = session
        self._dataset = dataset

    @classmethod
    @contextlib.contextmanager
    def over(cls, bundle: Bundle, data: Path, loss: str, progress: Progress) -> Iterator[Evaluator]:
        """Open the bundle, tokenize the examples and yield an evaluator."""
        with (
            bundle.session() as session,
            bundle.examples(data, progress=progress, **reading_of(bundle, loss)) as (dataset, _),
        ):
            session.configure(loss=loss)
            yield cls(session, dataset)

    def __call__(self, model: Model) -> dict[str, Any]:
        """The key ``evaluation``: ``loss``, ``accuracy`` (None without choices) and ``examples``."""
        # The session has taken no step, so its initial values may be replaced again and again.
        models.write(self._session, model)
        found = self._session.evaluate(self._dataset)
        return {
            "evaluation": {
                "loss": found.loss,
                "accuracy": found.accuracy,
                "examples": found.examples,
            }
        }
