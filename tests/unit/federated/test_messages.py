"""Messages, checks of replies, seeds and the division of data: what a federation does before any session runs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zoexport.core.errors import ConfigError, DataError, StateError
from zoexport.federated import checks, models, shards
from zoexport.federated.aggregate import combined_trajectory, mean
from zoexport.federated.checks import Accepted, Refusal, accepted, bound, too_large
from zoexport.federated.protocol import (
    BEHIND,
    DONE,
    REFUSED,
    SYNC,
    TRAIN,
    Reply,
    Request,
    RoundScalars,
    Trajectory,
)
from zoexport.federated.terms import ALGORITHMS, Terms, algorithm

TERMS = Terms("a" * 64, "replay", 3, 2, 5, 0.1, 0.01, "full", 4, 1, "central")
MODEL = {"w": np.arange(6, dtype=np.float32)}


def trajectory(seed: int = 0, steps: int = 2, scalars: int = 5) -> Trajectory:
    generator = np.random.default_rng(seed)
    losses = generator.uniform(1, 2, steps).astype(np.float32)
    return Trajectory(losses, generator.normal(size=(steps, scalars)).astype(np.float32))


def reply(**changes: Any) -> Reply:
    values: dict[str, Any] = {
        "status": DONE,
        "round": 4,
        "version": 4,
        "client": 7,
        "bundle": TERMS.bundle,
        "has": 4,
        "digest": "d" * 64,
        "body": trajectory().pack(),
    }
    return Reply(**{**values, **changes})


def look(content: bytes, terms: Terms = TERMS) -> Accepted:
    return accepted(content, client=7, round_number=4, version=4, terms=terms, model=MODEL)


def test_requests_and_replies_come_back_as_they_were() -> None:
    rounds = [RoundScalars(3, {9: trajectory(1), 2: trajectory(2)})]
    request = Request(SYNC, "fed", 4, 4, 7, TERMS.as_dict(), 3, b"state\n\x00", rounds)
    found = Request.unpack(request.pack())
    assert (found.kind, found.federation, found.client, found.since) == (SYNC, "fed", 7, 3)
    assert found.state == b"state\n\x00" and Terms.of(found.terms) == TERMS
    for client, one in rounds[0].trajectories.items():
        np.testing.assert_array_equal(found.rounds[0].trajectories[client].gradients, one.gradients)
        np.testing.assert_array_equal(found.rounds[0].trajectories[client].losses, one.losses)
    assert rounds[0].size() == 2 * 4 * 2 * (1 + 5)
    sent = reply(reason="ü", body=b"\n\n")
    assert Reply.unpack(sent.pack()) == sent


def test_rounds_keep_aggregate_and_limit() -> None:
    rounds = [RoundScalars(3, {9: trajectory(1)}, "median", 0.25)]
    request = Request(SYNC, "fed", 4, 4, 7, TERMS.as_dict(), 3, None, rounds)
    found = Request.unpack(request.pack()).rounds[0]
    assert (found.aggregate, found.limit) == ("median", 0.25)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no json\n",
        b"[]\n",
        reply().pack().replace(b'"protocol":2', b'"protocol":1'),
        reply().pack().replace(b'"protocol":2', b'"protocol":3'),
        b'{"protocol":2,"parts":[-1]}\n',
        b'{"protocol":2,"parts":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"protocol":2,"parts":[4]}\nabc',
        reply().pack()[:-1],
        reply().pack() + b"x",
        reply().pack().replace(b'"round":4', b'"round":true'),
        reply().pack().replace(b'"round":4', b'"round":-4'),
        reply().pack().replace(b'"status":"done"', b'"status":"gone"'),
        reply().pack().replace(b'"digest"', b'"digested"'),
        reply().pack().replace(b',"private":false', b""),
    ],
)
def test_bytes_that_are_no_message(content: bytes) -> None:
    with pytest.raises(DataError, match="federated message"):
        Reply.unpack(content)
    with pytest.raises(DataError, match="federated message"):
        Request.unpack(content)


def test_every_truncation_is_refused() -> None:
    whole = Request(
        TRAIN, "f", 1, 1, 0, TERMS.as_dict(), 0, None, [RoundScalars(0, {0: trajectory()})]
    ).pack()
    assert Request.unpack(whole).rounds
    for length in range(len(whole)):
        with pytest.raises(DataError):
            Request.unpack(whole[:length])


def test_a_good_reply() -> None:
    found = look(reply().pack())
    assert found.trajectory is not None and found.client == 7
    assert found.magnitude == pytest.approx(float(np.abs(trajectory().gradients).max()))
    assert found.size == len(reply().pack()) <= 8 * 10 + 1000


def bad_scalar(value: float) -> bytes:
    found = trajectory()
    found.gradients[1, 2] = value
    return found.pack()


def bad_loss(value: float) -> bytes:
    found = trajectory()
    found.losses[0] = value
    return found.pack()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bundle": "b" * 64}, "bundle bbbb"),
        ({"round": 3}, "stale: round 3"),
        ({"version": 5}, "stale: round 4 on version 5"),
        ({"client": 8}, "the number of client 8"),
        ({"status": REFUSED, "reason": "no room"}, "the client refused: no room"),
        ({"status": BEHIND}, "status behind"),
        ({"body": trajectory(steps=3).pack()}, "count"),
        ({"body": trajectory().pack()[:-4]}, "count"),
        ({"body": bad_scalar(math.nan)}, "not finite"),
        ({"body": bad_scalar(math.inf)}, "not finite"),
        ({"body": bad_loss(math.nan)}, "not finite"),
    ],
)
def test_a_reply_that_does_not_count(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        look(reply(**changes).pack())


def test_values_that_do_not_count() -> None:
    terms = dataclasses.replace(TERMS, algorithm="fedzo")
    losses = trajectory().losses
    good = {"w": MODEL["w"] + np.float32(0.5)}
    body = models.pack_values(losses, good)
    found = look(reply(body=body, digest=models.digest(good)).pack(), terms)
    assert found.magnitude == 0.5 and found.model is not None
    for bad, reason in (
        (reply(body=body), "another digest"),
        (reply(body=models.pack_values(losses, {"v": good["w"]})), "other slots"),
        (reply(body=models.pack_values(losses, {"w": good["w"] * np.nan})), "not finite"),
        (reply(body=b""), "values"),
        (reply(body=body[:-1]), "values"),
    ):
        with pytest.raises(Refusal, match=reason):
            look(bad.pack(), terms)


def test_the_bound_is_that_of_the_definition() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 100.0]
    # Median 4; deviations 3, 2, 0, 4, 96: median 3.
    assert bound(values, []) == pytest.approx(4 + 8 * max(1.4826 * 3, 4))
    assert bound([5.0, 5.0, 5.0], []) == 45.0
    assert bound([1.0, 1e30], []) == math.inf
    assert bound([1.0, 1e30], [1.0, 2.0]) == pytest.approx(1.5 + 8 * 1.5)
    assert bound([1.0] * 3, [1e9] * 10 + [1.0] * checks.HISTORY) == 9.0, "only the newest count"


@pytest.mark.parametrize("outlier", [1e30, 1e3])
def test_an_outlier_does_not_count_whoever_comes_first(outlier: float) -> None:
    template = look(reply().pack())
    found = {
        client: dataclasses.replace(template, client=client, magnitude=magnitude)
        for client, magnitude in ((3, 2.0), (1, outlier), (0, 1.0), (2, 4.0))
    }
    refused = too_large(found, [])
    assert list(refused) == [1] and "above the round's bound" in refused[1]
    assert too_large(dict(sorted(found.items())), []) == refused


def test_no_two_clients_of_a_federation_share_a_seed() -> None:
    seeds = [TERMS.client_seed(number, client) for number in range(50) for client in range(50)]
    assert len(set(seeds)) == 2500 and max(seeds) < 2**64
    # Another base seed has others; the definition is part of the protocol.
    other = dataclasses.replace(TERMS, seed=4)
    assert not set(seeds) & {other.client_seed(0, client) for client in range(50)}
    assert TERMS.client_seed(1, 2) == 14735174974008312476
    shared = dataclasses.replace(TERMS, algorithm="decomfl")
    assert len({shared.client_seed(0, client) for client in range(9)}) == 1
    assert shared.client_seed(0, 0) != shared.client_seed(1, 0)


def test_means_are_added_up_in_float64() -> None:
    values = [
        np.array([1e8, 1], np.float32),
        np.array([1, 2], np.float32),
        np.array([-1e8, 6], np.float32),
    ]
    found = mean({"w": one} for one in values)
    np.testing.assert_array_equal(found["w"], [1 / 3, 3])
    ones = [Trajectory(one, one[:, None]) for one in values]
    averaged = combined_trajectory(dict(enumerate(ones)))
    np.testing.assert_array_equal(averaged.gradients[:, 0], np.array([1 / 3, 3], np.float32))
    np.testing.assert_array_equal(averaged.losses, np.array([1 / 3, 3], np.float32))


def test_terms_of_something_else() -> None:
    content = TERMS.as_dict()
    assert Terms.of(json.loads(json.dumps(content))) == TERMS
    for wrong in ({"steps": "2"}, {"steps": True}, {"algorithm": "magic"}, {"more": 1}):
        with pytest.raises((KeyError, TypeError)):
            Terms.of({**content, **wrong})


def test_algorithms_are_for_bundles_of_their_kind() -> None:
    assert algorithm(None, first_order=False) == "replay"
    assert algorithm(None, first_order=True) == "fedavg"
    with pytest.raises(ConfigError, match="a bundle of a first-order method"):
        algorithm("replay", first_order=True)
    with pytest.raises(ConfigError, match="Did you mean 'decomfl'"):
        algorithm("decomfed", first_order=False)
    assert {name for name, how in ALGORITHMS.items() if how.upload == "scalars"} == {
        "replay",
        "decomfl",
    }


def test_models_of_other_slots_are_refused() -> None:
    packed = models.pack(MODEL)
    assert models.digest(models.unpack(packed, {"w": 6}, "x")) == models.digest(MODEL)
    for like in ({"w": 7}, {"v": 6}, {}):
        with pytest.raises(StateError):
            models.unpack(packed, like, "x")
    with pytest.raises(StateError):
        models.unpack(packed[:-1], {"w": 6}, "x")


# ---- dividing data ---------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    rows = [
        {"prompt": f"p{i}", "completion": "ab"[i % 2], "user": i % 5, "part": i % 40}
        for i in range(200)
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.mark.parametrize("how", ["iid", "labels:0.3", "labels:100", "field:part"])
def test_every_example_is_one_clients(data: Path, how: str) -> None:
    found = shards.divided(data, 8, how, 3)
    assert sorted(index for shard in found for index in shard) == list(range(200))
    assert all(found) and found == shards.divided(data, 8, how, 3)
    if how != "field:part":
        assert found != shards.divided(data, 8, how, 4)


def test_iid_is_even_and_labels_are_skewed(data: Path) -> None:
    assert {len(shard) for shard in shards.divided(data, 8, "iid", 0)} == {25}

    def skew(how: str) -> float:
        found = shards.divided(data, 8, how, 0)
        shares = [np.mean([index % 2 for index in shard]) for shard in found]
        return float(np.mean([abs(share - 0.5) for share in shares]))

    assert skew("labels:0.1") > 0.3 > 0.1 > skew("labels:1000")


def test_a_field_stays_together(data: Path) -> None:
    found = shards.divided(data, 4, "field:user", 0)
    owners = Counter(index % 5 for shard in found for index in {i % 5 for i in shard})
    assert set(owners.values()) == {1}
    assert sorted(len(shard) for shard in found) == [40, 40, 40, 80]


@pytest.mark.parametrize(
    ("how", "clients", "message"),
    [
        ("magic", 2, "iid, labels:ALPHA"),
        ("labels:0", 2, "labels:ALPHA"),
        ("labels:x", 2, "labels:ALPHA"),
        ("field:", 2, "field:NAME"),
        ("iid", 201, "200 examples"),
        ("field:user", 6, "give 5 clients data"),
    ],
)
def test_data_that_cannot_be_divided_so(data: Path, how: str, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shards.divided(data, clients, how, 0)
    with pytest.raises(DataError, match="no 'who'"):
        shards.divided(data, 2, "field:who", 0)


def test_lines_go_to_their_clients(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.jsonl"
    tokens.write_text("a\nb\nc\n")
    shards.write(tokens, [[2], [0, 1]], tmp_path / "shards")
    shards.write(tokens, [[2], [0, 1]], tmp_path / "shards")
    assert (tmp_path / "shards" / "0.jsonl").read_text() == "c\n"
    assert (tmp_path / "shards" / "1.jsonl").read_text() == "a\nb\n"
