"""Clipped and noised uploads: what they spend, that they are counted, and that rounds take them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.federations import Network, examples, federation, terms_of
from zoexport.core.errors import ConfigError, DivergedError, StateError
from zoexport.federated import models
from zoexport.federated.client import Client
from zoexport.federated.privacy import Ledger, Privacy, spent
from zoexport.federated.protocol import Reply, Trajectory
from zoexport.session import Bundle

pytest.importorskip("opacus")
PRIVACY = Privacy(clip=2.0, noise=8.0, epsilon=3.0, delta=1e-5)


def exact_delta(epsilon: float, multiplier: float) -> float:
    """Of a Gaussian mechanism of sensitivity 1, in closed form (Balle and Wang, 2018, theorem 8)."""

    def normal(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2))

    half, moved = 1 / (2 * multiplier), epsilon * multiplier
    return normal(half - moved) - math.exp(epsilon) * normal(-half - moved)


@pytest.mark.parametrize("noise", [2.0, 8.0, 30.0])
@pytest.mark.parametrize("uploads", [1, 10, 100])
def test_what_uploads_spend_is_not_below_the_closed_form(noise: float, uploads: int) -> None:
    """Two data sets are 2 C apart, and n uploads are one of noise z over the root of n."""
    found = spent({noise: uploads}, 1e-5)
    multiplier = noise / 2 / math.sqrt(uploads)
    assert exact_delta(found, multiplier) <= 1e-5 < exact_delta(0.7 * found, multiplier)


def test_uploads_of_different_noise_compose() -> None:
    both = spent({4.0: 2, 8.0: 8}, 1e-5)
    # 2 / 4^2 + 8 / 8^2 is 4 / 4^2.
    assert both == pytest.approx(spent({4.0: 4}, 1e-5), rel=1e-9)
    assert spent({}, 1e-5) == 0.0


def test_a_budget_is_a_number_of_uploads() -> None:
    count = PRIVACY.uploads()
    assert spent({8.0: count}, 1e-5) <= 3.0 < spent({8.0: count + 1}, 1e-5)
    with pytest.raises(ConfigError, match="a budget for one upload at least"):
        Privacy(1.0, 0.5, 1.0, 1e-5).uploads()


def test_an_upload_is_shortened_and_then_noised() -> None:
    quiet = Privacy(clip=2.0, noise=1e-12, epsilon=1.0, delta=1e-5)
    np.testing.assert_allclose(quiet.noised(np.array([3.0, 4.0])), [1.2, 1.6], atol=1e-9)
    np.testing.assert_allclose(quiet.noised(np.array([0.3, 0.4])), [0.3, 0.4], atol=1e-9)
    np.testing.assert_allclose(quiet.noised(np.zeros(3)), np.zeros(3), atol=1e-9)
    drawn = PRIVACY.noised(np.zeros(200_000))
    assert float(drawn.std()) == pytest.approx(16.0, rel=0.01)
    assert abs(float(drawn.mean())) < 0.2
    assert not np.array_equal(PRIVACY.noised(np.zeros(9)), PRIVACY.noised(np.zeros(9)))


def test_a_ledger_counts_and_refuses(tmp_path: Path) -> None:
    count = PRIVACY.uploads()
    for _ in range(count):
        Ledger(tmp_path, PRIVACY).take()
    for _ in range(2):
        with pytest.raises(StateError, match="The budget is spent"):
            Ledger(tmp_path, PRIVACY).take()
    content = json.loads((tmp_path / "privacy.json").read_text())
    assert content["uploads"] == {"8.0": count} and content["epsilon"] <= 3.0
    (tmp_path / "privacy.json").write_text("{")
    with pytest.raises(StateError, match="without it no upload is made"):
        Ledger(tmp_path, PRIVACY).take()


def clients_of(bundle: Path, folder: Path, count: int, privacy: Privacy) -> dict[int, Client]:
    return {
        number: Client(Bundle.open(bundle), examples, folder / f"client-{number}", privacy=privacy)
        for number in range(count)
    }


@pytest.mark.parametrize("algorithm", ["replay", "decomfl", "fedavg"])
def test_rounds_take_noised_uploads(mezo: Path, mebp: Path, tmp_path: Path, algorithm: str) -> None:
    """They replay as they were sent, and say nothing of losses; a budget that is spent is a refusal."""
    bundle = mebp if algorithm == "fedavg" else mezo
    privacy = Privacy(clip=1.0, noise=8.0, epsilon=1.5, delta=1e-5)
    uploads = privacy.uploads()
    terms = terms_of(bundle, algorithm)
    network = Network(clients_of(bundle, tmp_path, 2, privacy))
    with federation(tmp_path, bundle, terms, network, sample=2) as server:
        before = dict(server.model)
        for number in range(uploads):
            found = server.run_round(number)
            assert found["clients"] == [0, 1] and found["loss"] is None
        replies = [
            Reply.unpack((tmp_path / "server" / "rounds" / "000000" / name).read_bytes())
            for name in ("reply-0.bin", "reply-1.bin")
        ]
        found = server.run_round(uploads)
        assert found["clients"] == [] and found["void"]
        assert all("StateError" in entry["reason"] for entry in found["refused"])
    numbers = []
    for reply in replies:
        assert reply.private
        if algorithm == "fedavg":
            losses, model = models.unpack_values(reply.body, terms.steps, models.sizes_of(before))
            numbers.append(np.concatenate([model[name] - before[name] for name in model]))
        else:
            trajectory = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
            losses = trajectory.losses
            numbers.append(trajectory.gradients.ravel())
        assert not losses.any()
    every = np.concatenate(numbers)
    if algorithm == "fedavg":  # so many that the noise can be seen
        assert float(every.std()) == pytest.approx(8.0, rel=0.05)
    assert np.linalg.norm(every) > 8.0, "noise, not a clipped update"


def test_a_client_that_is_asked_again_draws_no_second_noise(
    mezo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = terms_of(mezo)
    network = Network(clients_of(mezo, tmp_path, 1, PRIVACY))
    with federation(tmp_path, mezo, terms, network, sample=1) as server:
        server.run(1)
    _, request = network.requests[0]
    fresh = Client(Bundle.open(mezo), examples, tmp_path / "client-0", privacy=PRIVACY)
    replies = {fresh.handle(request) for _ in range(3)}
    assert len(replies) == 1
    assert json.loads((tmp_path / "client-0" / "privacy.json").read_text())["uploads"] == {"8.0": 1}
    # Steps that diverge are of the data too: the upload is noise over zeros, and counts.
    other = Client(Bundle.open(mezo), examples, tmp_path / "other", privacy=PRIVACY)

    def diverging(*_: Any) -> Any:
        raise DivergedError("step 1", found="a loss", expected="less", fix="Lower learning_rate.")

    monkeypatch.setattr(other, "_stepped", diverging)
    reply = Reply.unpack(other.handle(request))
    assert reply.status == "done" and reply.private
    assert (tmp_path / "other" / "privacy.json").exists()
