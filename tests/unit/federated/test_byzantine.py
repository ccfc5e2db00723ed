"""Clients that are not honest: every round ends, and the model stays one, whoever they are, whenever a server dies."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fake_federations import (
    ATTACKS,
    FIRST,
    FakeClients,
    FakeReplayer,
    federation,
    held_out,
    terms_of,
)
from zoexport.core.errors import StateError
from zoexport.federated import models
from zoexport.federated.guard import VOID_ROUNDS, Guard
from zoexport.federated.protocol import Reply, Request, Trajectory
from zoexport.federated.store import Store
from zoexport.federated.terms import ALGORITHMS

ROUNDS = 5
GUARD = Guard("median", relative=3.0, rise=0.25)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here asks what a power loss does."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.parametrize("sample", [1, 2, 3, 10])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_round_ends(tmp_path: Path, attack: str, algorithm: str, sample: int) -> None:
    """A quarter of the clients attack; the loss is never more than the stated share above the lowest before."""
    terms = terms_of(algorithm)
    attackers = dict.fromkeys(range(0, 12, 4), ATTACKS[attack])
    clients = FakeClients(terms, 12, attackers)
    with federation(tmp_path, terms, clients, sample=sample, guard=GUARD, gate=True) as server:
        lowest = held_out(FIRST)
        for number in range(ROUNDS):
            server.run_round(number)
            loss = held_out(server.model)
            assert models.finite(server.model) and loss <= 1.25 * lowest + 1e-6
            lowest = min(lowest, loss)
        assert lowest < held_out(FIRST), "nothing was learned"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_huge_update_of_two_in_the_first_round(tmp_path: Path, algorithm: str) -> None:
    """There is nothing to compare it with but the other; without a gate."""
    terms = terms_of(algorithm)
    clients = FakeClients(terms, 2, {0: ATTACKS["huge"]})
    with federation(tmp_path, terms, clients, sample=2, guard=Guard(relative=3.0)) as server:
        server.run_round(0)
        assert held_out(server.model) < 10 * held_out(FIRST)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_absolute_bound_holds_for_one_client(tmp_path: Path, algorithm: str) -> None:
    terms = terms_of(algorithm)
    clients = FakeClients(terms, 1, {0: ATTACKS["huge"]})
    with federation(tmp_path, terms, clients, sample=1, guard=Guard(norm=0.5)) as server:
        found = server.run_round(0)
        moved = np.concatenate([server.model[name] - FIRST[name] for name in FIRST])
    assert found["limit"] == 0.5 and found["clients"] == [0]
    assert np.linalg.norm(moved) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("aggregate", ["trimmed-mean", "median"])
def test_an_aggregate_is_that_of_the_definition(
    tmp_path: Path, algorithm: str, aggregate: str
) -> None:
    """Of five clients: the middle, or the mean of the three in the middle, of values or of scalars."""
    terms = terms_of(algorithm)
    clients = FakeClients(terms, 5, {1: ATTACKS["sign flip"], 4: ATTACKS["sign flip"]})
    guard = Guard(aggregate)
    with federation(tmp_path, terms, clients, sample=5, guard=guard) as server:
        found = server.run_round(0)
        assert found["clients"] == [0, 1, 2, 3, 4] and found["limit"] is None
        replies = server._store.replies(0)
        if terms.how.averages == "scalars":
            ours = server._requests.scalars(0).trajectories[0].gradients
        else:
            ours = np.concatenate([server.model["a"], server.model["b"]])
    each = []
    for client, content in replies.items():
        body = Reply.unpack(content).body
        if terms.how.upload == "values":
            _, model = models.unpack_values(body, terms.steps, models.sizes_of(FIRST))
        else:
            trajectory = Trajectory.unpack(body, terms.steps, terms.scalars)
            if terms.how.averages == "scalars":
                each.append(trajectory.gradients)
                continue
            seed = terms.client_seed(0, client)
            model = FakeReplayer(tmp_path).model(FIRST, seed, trajectory, terms)
        each.append(np.concatenate([model["a"], model["b"]]))
    middle = np.sort(np.stack(each).astype(np.float64), axis=0)
    expected = middle[2] if aggregate == "median" else middle[1:4].mean(0)
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-9)


def test_clients_reach_the_same_version_as_the_server(tmp_path: Path) -> None:
    """Also where updates were shortened, aggregated by a median, or a round changed nothing."""
    for algorithm in ("replay", "decomfl"):
        terms = terms_of(algorithm)
        attackers = {0: ATTACKS["fifty times"], 3: ATTACKS["nan"], 5: ATTACKS["five times back"]}
        clients = FakeClients(terms, 6, attackers)
        guard = Guard("median", relative=1.0, rise=0.0)
        with federation(
            tmp_path / algorithm, terms, clients, sample=3, guard=guard, gate=True
        ) as server:
            server.run(9)
            kinds = [
                (bool(one["clients"]), one.get("limit") is not None)
                for one in map(server._store.round, range(9))
            ]
            assert (True, True) in kinds
            for number in range(9):
                ended, notes = server._store.round(number), server._store.notes(number)
                assert notes.get("synchronized", []) == ended["clients"]
            final = models.digest(server.model)
        for path in (tmp_path / algorithm / "models").iterdir():
            path.unlink()
        with federation(tmp_path / algorithm, terms, clients, sample=3, guard=guard) as server:
            assert models.digest(server.model) == final


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_version_that_is_worse_is_rolled_back(tmp_path: Path, algorithm: str) -> None:
    terms = terms_of(algorithm)
    attackers: dict[int, Any] = {}
    clients = FakeClients(terms, 3, attackers)
    guard = Guard(rise=0.1)
    with federation(tmp_path, terms, clients, sample=3, guard=guard, gate=True) as server:
        server.run(2)
        before = models.digest(server.model)
        attackers |= dict.fromkeys(range(3), ATTACKS["five times back"])
        found = server.run_round(2)
        assert found["clients"] == [] and models.digest(server.model) == before
        assert found["rolled_back"]["clients"] == [0, 1, 2]
        assert all("held-out loss" in entry["reason"] for entry in found["refused"])
        assert found["evaluation"]["loss"] == held_out(server.model)
        attackers.clear()
        server.run(5)
        assert held_out(server.model) < found["evaluation"]["loss"]


def test_a_federation_in_which_nobody_counts_stops(tmp_path: Path) -> None:
    """And can be started again; where honest clients have come it goes on."""
    terms = terms_of("replay")
    attackers: dict[int, Any] = dict.fromkeys(range(3), ATTACKS["nan"])
    clients = FakeClients(terms, 3, attackers)
    with (
        federation(tmp_path, terms, clients, sample=2) as server,
        pytest.raises(StateError, match=f"found {VOID_ROUNDS} in a row that changed nothing"),
    ):
        server.run(50)
    attackers.clear()
    with federation(tmp_path, terms, clients, sample=2) as server:
        server.run(VOID_ROUNDS + 3)
        assert server._store.version() == VOID_ROUNDS + 3
        assert held_out(server.model) < held_out(FIRST)


class Killed(BaseException):
    """Ends a server where a signal would."""


@contextlib.contextmanager
def killed_at(count: int, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> Iterator[list[int]]:
    """The server dies at its count-th write: before the file has its name, or once it has."""
    seen = [0]
    replace: Callable[..., Path] = Path.replace
    opened: Callable[..., Any] = Path.open

    def dying(act: Callable[[], Any]) -> Any:
        seen[0] += 1
        if seen[0] == count and before:
            raise Killed
        result = act()
        if seen[0] == count:
            raise Killed
        return result

    def replacing(self: Path, target: Path) -> Path:
        return dying(lambda: replace(self, target))  # type: ignore[no-any-return]

    def opening(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode == "a" and self.name == "refused.jsonl":
            return dying(lambda: opened(self, mode, *arguments, **options))
        return opened(self, mode, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replacing)
        patched.setattr(Path, "open", opening)
        yield seen


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("sample", [1, 2, 3, 10])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_server_killed_at_any_write_ends_with_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, sample: int, before: bool
) -> None:
    terms = terms_of(algorithm)
    mixed = [ATTACKS[name] for name in ("huge", "nan", "deep JSON", "five times back")]
    attackers = dict(zip((1, 4, 6, 9), mixed, strict=True))

    def run(folder: Path) -> str:
        clients = FakeClients(terms, 12, attackers)
        with federation(folder, terms, clients, sample=sample, guard=GUARD, gate=True) as server:
            server.run(1 if sample == 10 else 2)
            return models.digest(server.model)

    with killed_at(-1, monkeypatch, before=before) as writes:
        calm = run(tmp_path / "calm")
    for count in range(1, writes[0] + 1):
        folder = tmp_path / str(count)
        with killed_at(count, monkeypatch, before=before), pytest.raises(Killed):
            run(folder)
        assert run(folder) == calm, count


# ---- what a long federation costs ------------------------------------------------------------------------------------


def test_sizes_are_compared_before_replies_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client that is new gets is known from how many there were."""
    terms = terms_of("replay")
    with federation(tmp_path, terms, FakeClients(terms, 3, {}), sample=3) as server:
        server.run(30)
        read: list[int] = []
        reply = Store.reply

        def counting(self: Store, number: int, client: int) -> bytes:
            read.append(number)
            return reply(self, number, client)

        monkeypatch.setattr(Store, "reply", counting)
        # A round's scalars are more than this model.
        assert Request.unpack(server._request("train", 30, 2, 0)).state is not None
        assert read == []
        # Of a larger one they are less.
        large = {name: np.zeros(10**5, np.float32) for name in FIRST}
        found = server._requests.build("train", 30, 2, 28, large)
        assert Request.unpack(found).state is None and sorted(set(read)) == [28, 29]


def test_many_rounds_are_replayed_without_a_stack(tmp_path: Path) -> None:
    """Where the last models are lost, the version comes of all rounds before."""
    terms = terms_of("replay")
    clients = FakeClients(terms, 1, {})
    with federation(tmp_path, terms, clients, sample=1) as server:
        server.run(150)
        expected = models.digest(server.model)
    for path in (tmp_path / "models").iterdir():
        path.unlink()
    before, depth = sys.getrecursionlimit(), len(inspect.stack(0))
    sys.setrecursionlimit(depth + 130)
    try:
        with federation(tmp_path, terms, clients, sample=1) as server:
            assert models.digest(server.model) == expected
    finally:
        sys.setrecursionlimit(before)
