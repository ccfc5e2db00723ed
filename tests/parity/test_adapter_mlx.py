"""A trained adapter, exported for mlx-lm: mlx-lm's model has the session's loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from tests.support.compiled import Compiler
from tests.support.mlx_models import mlx_logits, mlx_model
from zoexport.api import Bundle
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity

EXAMPLES = [
    [(7 * number + 3 * place) % 300 for place in range(length + 1)]
    for number, length in enumerate((5, 24, 11))
]


def _data() -> Dataset:
    data = Dataset()
    for tokens in EXAMPLES:
        data.add([(tokens[:-1], tokens[1:])], 0)
    return data


def _mlx_loss(folder: Path, adapter: Path | None) -> float:
    """The mean over the examples of the mean over an example's labels."""
    model = mlx_model(folder, adapter)
    losses = []
    for tokens in EXAMPLES:
        logprobs = log_softmax(mlx_logits(model, [tokens[:-1]])[0].astype(np.float64), -1)
        losses.append(-logprobs[np.arange(len(tokens) - 1), tokens[1:]].mean())
    return float(np.mean(losses))


@pytest.mark.parametrize(("target", "layers"), [("host", "last:1"), ("ios-mlx", "all")])
def test_mlx_lm_has_the_sessions_loss(
    compiler: Compiler, target: str, layers: str, tmp_path: Path
) -> None:
    settings = {
        "lora__target_modules": "all-linear",
        "lora__layers_to_transform": layers,
        "lora__alpha": 6,
    }
    bundle = compiler.bundle("qwen2", "mebp", target, **settings)
    with Session.open(bundle) as session, _data() as data:
        session.attach(tmp_path / "state")
        session.configure(learning_rate=0.01)
        untrained = session.evaluate(data).loss
        for _ in range(3):
            session.step(data, [0, 1, 2])
        trained = session.evaluate(data).loss
        session.save()
    assert untrained - trained > 0.05
    adapter = tmp_path / "adapter"
    result = (
        Bundle.open(bundle)
        .export_adapter(adapter, state=tmp_path / "state", format="mlx")
        .as_dict()
    )
    assert result["format"] == "mlx" and result["steps"] == 3
    model = compiler.model("qwen2")
    assert _mlx_loss(model, None) == pytest.approx(untrained, abs=1e-3)
    assert _mlx_loss(model, adapter) == pytest.approx(trained, abs=1e-3)
    # And back: the state that starts from these files is where the run was.
    Bundle.open(bundle).import_adapter(adapter, format="mlx", state=tmp_path / "back")
    with Session.open(bundle) as session, _data() as data:
        session.attach(tmp_path / "back", read_only=True)
        assert session.evaluate(data).loss == trained
