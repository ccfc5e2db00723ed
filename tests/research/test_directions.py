"""The report on A's directions: on a tiny model, against gradients by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from research.directions.measure import RANKS, WHOLE, drawn, measured, share, squares
from tests.support.tiny_models import fixed_tokens, save_tiny
from zoexport import models
from zoexport.data.examples import Candidate

ROWS = fixed_tokens(4, 20).tolist()
HELD_OUT = [Candidate.predicting(row, 12) for row in fixed_tokens(6, 16).tolist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("llama_tied", tmp_path_factory.mktemp("models") / "tiny")


def test_shares_are_those_of_gradients(folder: Path) -> None:
    loaded = models.load(models.resolve(str(folder)))
    modules = models.adapter_targets(loaded.model, "all-linear")
    bases = {
        "random": drawn(loaded, modules, max(RANKS)),
        "measured": measured(loaded, modules, max(RANKS), ROWS),
    }
    found = squares(loaded, bases, [HELD_OUT[:4], HELD_OUT[4:]])
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())

    name = "model.layers.1.mlp.down_proj"
    model: Any = models.load(models.resolve(str(folder))).model
    weight = model.get_submodule(name).weight.requires_grad_(True)
    whole, kept = 0.0, {(way, rank): 0.0 for way in bases for rank in RANKS}
    for batch in (HELD_OUT[:4], HELD_OUT[4:]):
        tokens = torch.tensor([one.tokens for one in batch])
        labels = torch.tensor([one.labels for one in batch])
        logits = model(input_ids=tokens).logits
        # Rows have the same number of labels, so one mean is the mean of the means.
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        (gradient,) = torch.autograd.grad(loss, weight)
        whole += gradient.square().sum().item()
        for way, basis in bases.items():
            for rank in RANKS:
                v = basis[name][:, :rank]
                kept[way, rank] += (gradient @ v @ v.T).square().sum().item()
    assert found[WHOLE][name] == pytest.approx(whole, rel=1e-4)
    for (way, rank), expected in kept.items():
        assert found[way, rank][name] == pytest.approx(expected, rel=1e-4)
        assert share(found, way, rank, (name,)) == pytest.approx(expected / whole, rel=1e-4)
    assert share(found, "measured", 64, ("q_proj",)) == pytest.approx(1)  # all directions
    assert share(found, "measured", 4, ("",)) > share(found, "random", 4, ("",))
