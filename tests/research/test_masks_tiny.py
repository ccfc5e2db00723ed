"""The report's training by masks over the real compiler and session, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.masks.training import Case, Plan, Trainings
from tests.support.masks import write_random_mask
from tests.support.tiny_models import SENTENCES, save_tiny
from zoexport import models

pytestmark = pytest.mark.slow


def test_static_and_dynamic_masks(tmp_path: Path) -> None:
    model = save_tiny("llama_tied", tmp_path / "model")
    data = tmp_path / "data.jsonl"
    choices = [" great", " terrible"]
    rows = [
        {"prompt": f"{text} It was", "completion": choices[n % 2], "choices": choices}
        for n, text in enumerate(SENTENCES)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    mask = write_random_mask(model, tmp_path / "random.mask")

    def trainings() -> Trainings:
        return Trainings(
            str(model),
            models.fingerprint(models.resolve(str(model))),
            data,
            data,
            Plan(
                steps=4,
                phases=2,
                promises=(1e-4,),
                batch_size=2,
                num_queries=2,
                max_length=48,
                sequences=2,
            ),
            mask_file=lambda kind, density: mask,
            share=lambda kind, density: 0.01,
            work=tmp_path / "work",
            progress=lambda phase, done: None,
        )

    static = trainings().run(Case("random", 1e-2), may_begin=lambda: True)
    dynamic = trainings().run(Case("random", 1e-2, dynamic=True), may_begin=lambda: True)
    assert static is not None and dynamic is not None
    assert static["untrained"] == dynamic["untrained"]
    (one,), (other,) = static["runs"], dynamic["runs"]
    assert (one["steps"], other["steps"], other["phases"]) == (4, 4, 2)
    assert one["rate"] == other["rate"] == 0.01
    # They begin alike and go on with other masks.
    losses = {static["untrained"]["loss"], one["loss"], other["loss"]}
    assert len(losses) == 3
    # Bundles and states are gone, results are not.
    assert [path.name for path in (tmp_path / "work").iterdir() if path.is_dir()] == ["trained"]
    again = trainings().run(Case("random", 1e-2, dynamic=True), may_begin=lambda: False)
    assert again == dynamic
