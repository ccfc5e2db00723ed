"""Federations without bundles, sessions and Flower: a quadratic loss, clients that are honest or not, the real server.

The model is 24 values and their loss half the squared distance from where a client's data want them. A client's steps
are those of the algorithms, with directions of its seed; the server's replays follow the same equation. So a round
takes milliseconds, and everything between messages and disk is the code under test.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from zoexport.federated import coordinator, models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.coordinator import Coordinator, Patience
from zoexport.federated.guard import Guard
from zoexport.federated.models import Model
from zoexport.federated.protocol import BEHIND, DONE, SYNC, Reply, Request, Trajectory
from zoexport.federated.store import Store
from zoexport.federated.terms import ALGORITHMS, SCALARS, Terms

SIZE, STEPS, QUERIES, RATE = 24, 5, 2, 0.03
FIRST: Model = {"a": np.zeros(SIZE // 2, np.float32), "b": np.zeros(SIZE // 2, np.float32)}
WANTED = np.linspace(-1, 1, SIZE)


def terms_of(algorithm: str) -> Terms:
    how = ALGORITHMS[algorithm]
    return Terms(
        bundle="b" * 64,
        algorithm=algorithm,
        seed=3,
        steps=STEPS,
        scalars=0 if how.first_order else QUERIES,
        learning_rate=RATE if not how.first_order else 0.1,
        eps=1e-3,
        loss="full",
        batch_size=1,
        gradient_accumulation_steps=1,
        difference=how.difference or "central",
    )


def held_out(model: Mapping[str, NDArray[Any]]) -> float:
    """The loss on everybody's data."""
    return _loss(_flat(model), WANTED)


def evaluate(model: Model) -> dict[str, Any]:
    return {"evaluation": {"loss": held_out(model), "accuracy": None, "examples": 1}}


def _loss(values: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(0.5 * np.mean((values - wanted) ** 2))


def _flat(model: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    return np.concatenate([model[name].astype(np.float64) for name in sorted(model)])


def _model(flat: NDArray[np.float64]) -> Model:
    with np.errstate(over="ignore"):
        halves = np.split(flat.astype(np.float32), 2)
    return {"a": halves[0], "b": halves[1]}


def _directions(seed: int, step: int) -> NDArray[np.float64]:
    return np.random.default_rng([seed, step]).normal(size=(QUERIES, SIZE))


class FakeReplayer(Replayer):
    """Follows the equation of the fake steps."""

    def __init__(self, _: Path) -> None:
        self._halves = set()

    def model(self, model: Model, seed: int, trajectory: Trajectory, terms: Terms) -> Model:
        flat = _flat(model)
        with np.errstate(over="ignore", invalid="ignore"):
            for step, scalars in enumerate(trajectory.gradients.astype(np.float64)):
                flat = flat - terms.learning_rate * scalars @ _directions(seed, step) / QUERIES
        return _model(flat)


@dataclasses.dataclass(frozen=True)
class Steps:
    """What a client has before it makes a reply of it."""

    losses: NDArray[np.float32]
    gradients: NDArray[np.float32]
    before: Model
    after: Model


#: What an attacker makes of its honest steps: other steps, or bytes in place of its reply.
Attack = Callable[[Steps, Reply, Terms, int], "bytes | Steps"]


class FakeClients:
    """A transport to clients that keep nothing but the model they last had.

    Args:
        count: of all. attackers: which of them attack, and how.
    """

    def __init__(self, terms: Terms, count: int, attackers: Mapping[int, Attack]) -> None:
        self.terms, self.count, self.attackers = terms, count, attackers
        self._replayer = FakeReplayer(Path())
        self._had: dict[int, tuple[int, Model]] = {}

    def clients(self) -> Sequence[int]:
        return range(self.count)

    def exchange(
        self, requests: Mapping[int, bytes], timeout: float
    ) -> Iterator[tuple[int, bytes | str]]:
        for client, content in requests.items():
            yield client, self._answer(client, Request.unpack(content))

    def _answer(self, client: int, request: Request) -> bytes:
        has, model = self._had.get(client, (0, FIRST))
        target = request.version + (request.kind == SYNC)
        reply = Reply(DONE, request.round, request.version, client, self.terms.bundle, target)
        if request.state is not None:
            model = models.unpack(request.state, models.sizes_of(FIRST), "")
        elif not request.since <= has <= target:
            return dataclasses.replace(reply, status=BEHIND, has=has).pack()
        for one in request.rounds:
            if one.round >= has or request.state is not None:
                model = self._replayer.next_model(model, one, self.terms)
        self._had[client] = target, model
        if request.kind == SYNC:
            return dataclasses.replace(reply, digest=models.digest(model)).pack()
        steps = self._steps(client, request, model)
        if client in self.attackers:
            with np.errstate(all="ignore"):
                found = self.attackers[client](steps, reply, self.terms, request.round)
            if isinstance(found, bytes):
                return found
            steps = self._consistent(found, request, client)
        return self._packed(reply, steps)

    def _steps(self, client: int, request: Request, model: Model) -> Steps:
        wanted = WANTED + 0.1 * np.random.default_rng(client).normal(size=SIZE)
        seed = self.terms.client_seed(request.round, client)
        flat, losses, gradients = _flat(model), [], []
        for step in range(self.terms.steps):
            losses.append(_loss(flat, wanted))
            slope = flat - wanted
            if self.terms.how.first_order:
                flat = flat - self.terms.learning_rate * slope
                continue
            directions = _directions(seed, step)
            scalars = (directions @ slope).astype(np.float32)
            gradients.append(scalars)
            flat = (
                flat - self.terms.learning_rate * scalars.astype(np.float64) @ directions / QUERIES
            )
        shape = (self.terms.steps, self.terms.scalars)
        return Steps(
            np.array(losses, np.float32),
            np.array(gradients, np.float32).reshape(shape),
            model,
            _model(flat),
        )

    def _consistent(self, steps: Steps, request: Request, client: int) -> Steps:
        """An attacker's model follows from its scalars, so that only what they are can give it away."""
        if self.terms.how.upload != SCALARS:
            return steps
        seed = self.terms.client_seed(request.round, client)
        trajectory = Trajectory(steps.losses, steps.gradients)
        after = self._replayer.model(steps.before, seed, trajectory, self.terms)
        return dataclasses.replace(steps, after=after)

    def _packed(self, reply: Reply, steps: Steps) -> bytes:
        body = (
            Trajectory(steps.losses, steps.gradients).pack()
            if self.terms.how.upload == SCALARS
            else models.pack_values(steps.losses, steps.after)
        )
        return dataclasses.replace(reply, digest=models.digest(steps.after), body=body).pack()


def scaled(factor: float) -> Attack:
    """Its own update, many times over or backwards."""

    def attack(steps: Steps, reply: Reply, terms: Terms, number: int) -> Steps:
        after = {
            name: (values + (factor - 1) * (values.astype(np.float64) - steps.before[name])).astype(
                np.float32
            )
            for name, values in steps.after.items()
        }
        gradients = (steps.gradients * factor).astype(np.float32)
        return dataclasses.replace(steps, gradients=gradients, after=after)

    return attack


def losses_of(value: float) -> Attack:
    """Losses that it did not have."""

    def attack(steps: Steps, reply: Reply, terms: Terms, number: int) -> Steps:
        return dataclasses.replace(steps, losses=np.full_like(steps.losses, value))

    return attack


def sybils(strength: float) -> Attack:
    """All attackers push all values the same way, whatever their data; the scalars of all are the same."""

    def attack(steps: Steps, reply: Reply, terms: Terms, number: int) -> Steps:
        size = float(np.abs(steps.gradients).mean()) if steps.gradients.size else 1.0
        gradients = np.full_like(steps.gradients, strength * size)
        moved = np.sqrt(np.mean((_flat(steps.after) - _flat(steps.before)) ** 2)) + 0.01
        after = _model(_flat(steps.before) + strength * moved)
        return dataclasses.replace(steps, gradients=gradients, after=after)

    return attack


def sending(content: bytes) -> Attack:
    """The same bytes always."""
    return lambda steps, reply, terms, number: content


def replying(**changes: Any) -> Attack:
    """A reply that says something false of itself."""
    return lambda steps, reply, terms, number: dataclasses.replace(reply, **changes).pack()


DEEP = b'{"protocol":2,"parts":[],"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n"
ATTACKS: dict[str, Attack] = {
    "nan": scaled(float("nan")),
    "infinite": scaled(float("inf")),
    "huge": scaled(1e20),
    "fifty times": scaled(50.0),
    "sign flip": scaled(-1.0),
    "five times back": scaled(-5.0),
    "forged losses": losses_of(1e30),
    "losses of zero": losses_of(0.0),
    "negative losses": losses_of(-1.0),
    "deep JSON": sending(DEEP),
    "no message": sending(b"\xff" * 100),
    "nothing": sending(b""),
    "stale": replying(round=10**6),
    "another's number": replying(client=77),
    "far ahead": replying(status=BEHIND, has=10**9),
    "sybils": sybils(2.0),
}


@contextlib.contextmanager
def federation(
    folder: Path,
    terms: Terms,
    clients: FakeClients,
    *,
    sample: int,
    guard: Guard | None = None,
    gate: bool = False,
) -> Iterator[Coordinator]:
    """The real coordinator over the fake clients."""
    with (
        mock.patch.object(coordinator, "Replayer", FakeReplayer),
        mock.patch.object(models, "initial", return_value=dict(FIRST)),
        Store.opened(folder, terms, sample, folder) as store,
    ):
        yield Coordinator(
            store,
            Path(),
            clients,
            patience=Patience(seconds=1),
            guard=guard,
            evaluate=evaluate if gate else None,
            report=lambda _: None,
        )
