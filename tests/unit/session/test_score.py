"""``Session.score``: log-likelihoods of all candidates, whatever loss is configured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import bundles
from tests.support.bundles import SLOT, LinearModel
from tests.support.sessions import make_dataset
from zoexport.core.errors import Cancelled, DataError
from zoexport.session import Dataset, Session


@pytest.mark.parametrize("loss", ["full", "choices"])
def test_scores_are_of_every_candidate(tmp_path: Path, loss: str) -> None:
    """Choices, texts (which ``loss=choices`` would refuse), and a continuation that is greedy."""
    model = LinearModel()
    initial = bundles.initial_values()
    a, b = initial[bundles.FROZEN], initial[SLOT]
    greedy = [int(token) for token in model.logprobs(np.array([[1, 2, 3]]), b, a)[0].argmax(axis=1)]
    examples = [
        *bundles.choice_examples(70),
        *bundles.text_examples(),
        ([([1, 2, 3], greedy), ([1, 2, 3], [*greedy[:2], (greedy[2] + 1) % 8])], 0),
    ]
    path = bundles.write_bundle(tmp_path / "bundle")
    with make_dataset(examples) as dataset, Session.open(path, engine=model) as session:
        session.configure(loss=loss)
        found = session.score(dataset)
    assert [score.greedy for score in found[-1]] == [True, False]
    for scores, (candidates, _) in zip(found, examples, strict=True):
        for score, candidate in zip(scores, candidates, strict=True):
            total, labels, argmax = bundles.score(model, candidate, b, a)
            assert score.logprob == pytest.approx(total, rel=1e-5)
            assert score.greedy == (argmax == labels)


def test_scoring_ends_on_request_and_needs_examples(tmp_path: Path) -> None:
    path = bundles.write_bundle(tmp_path / "bundle")
    with Session.open(path, engine=LinearModel()) as session:
        with make_dataset(bundles.text_examples()) as dataset, pytest.raises(Cancelled):
            session.score(dataset, lambda done, total: True)
        with Dataset() as empty, pytest.raises(DataError, match="at least one"):
            session.score(empty)
