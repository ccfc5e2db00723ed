"""The server's rounds, whichever transport carries the messages."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from zoexport.core.errors import DataError, StateError, first_line
from zoexport.federated import checks, models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.checks import Accepted, Refusal
from zoexport.federated.guard import HISTORY, VOID_ROUNDS, Guard, evaluation_loss
from zoexport.federated.models import Model
from zoexport.federated.protocol import BEHIND, SYNC, TRAIN, Reply
from zoexport.federated.requests import Requests
from zoexport.federated.store import Store
from zoexport.federated.terms import SCALARS
from zoexport.federated.updates import Updates
from zoexport.session import Bundle


class Transport(Protocol):
    """Transport of messages between server and clients."""

    def clients(self) -> Sequence[int]:
        """Return the numbers of the clients that can be asked now."""

    def exchange(
        self, requests: Mapping[int, bytes], timeout: float
    ) -> Iterator[tuple[int, bytes | str]]:
        """Send a request to each client and yield replies as they come.

        Yields:
            The client that answered, as the transport knows it, and its reply; or text: why there is none. The
            iterator ends when every client has answered or ``timeout`` seconds have passed.
        """


@dataclasses.dataclass(frozen=True)
class Patience:
    """Limits of waiting for replies in a round.

    Attributes:
        seconds: timeout of one attempt. attempts: number of attempts per client.
        least: minimum share of asked clients that must reply.
    """

    seconds: float = 600.0
    attempts: int = 3
    least: float = 0.5


class Coordinator:
    """Runs the rounds of a federation that is kept in a store.

    Args:
        store: its folder.
        bundle: what is trained.
        transport: to the clients.
        patience: how long a round waits.
        guard: what a round may do to the model.
        evaluate: gives the key ``evaluation`` of a model; called in each round that makes one.
        flops: of one client's step, for the report.
        report: called with what a round said of itself once it is on disk.
    """

    def __init__(
        self,
        store: Store,
        bundle: Bundle,
        transport: Transport,
        *,
        patience: Patience,
        guard: Guard | None = None,
        evaluate: Callable[[Model], Mapping[str, Any]] | None = None,
        flops: int | None = None,
        report: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._store = store
        self._terms = store.terms
        self._requests = Requests(store)
        self._transport = transport
        self._patience = patience
        self._guard = guard or Guard()
        self._evaluate = evaluate
        self._flops = flops
        self._report = report
        self._initial = models.initial(bundle)
        self._sizes = models.sizes_of(self._initial)
        self._replayer = Replayer(bundle) if self._scalars else None
        self._model = self._load(store.version())
        #: The version that each client is known to have; a client that is not here has version 0.
        self._versions = self._known_versions()

    @property
    def _scalars(self) -> bool:
        return self._terms.how.upload == SCALARS

    @property
    def model(self) -> Model:
        """The newest version."""
        return self._model

    def run(self, rounds: int) -> None:
        """Run rounds until the federation has ``rounds`` of them.

        Raises:
            StateError: too few clients answered, or no reply counted in many rounds. What has come is kept, and the
                next call goes on.
        """
        void = 0
        while (number := self._store.version()) < rounds:
            void = 0 if self.run_round(number)["clients"] else void + 1
            if void >= VOID_ROUNDS:
                raise StateError(
                    f"rounds up to {number}",
                    found=f"{void} in a row that changed nothing",
                    expected="replies that count, and a version that the gate lets pass",
                    fix=f"See {self._store.folder}/rounds; run again to go on.",
                )

    def run_round(self, number: int) -> dict[str, Any]:
        """Run one round, or what is left of it."""
        started = time.monotonic()
        plan = self._store.plan(number) or self._store.begin(number, self._sampled(number))
        traffic = _Traffic()
        found = self._collected(number, plan["clients"], traffic)
        losses = _losses(found)
        counted = self._checked(number, found)
        model, about = self._aggregated(number, plan["clients"], counted)
        model, gate = self._gated(number, model, counted)
        if counted:
            losses = _losses(counted)
        digest = models.digest(model)
        content = {
            "round": number,
            "asked": plan["clients"],
            "clients": sorted(counted),
            "refused": self._store.refused(number),
            "loss": float(np.mean(losses)) if losses else None,
            "digest": digest,
            "magnitudes": [counted[client].magnitude for client in sorted(counted)],
            "uploads": [counted[client].size for client in sorted(counted)],
            "bytes_up": traffic.up,
            "bytes_down": traffic.down,
            "flops": None
            if self._flops is None
            else self._flops * self._terms.steps * len(plan["clients"]),
            **about,
            **gate,
            "seconds": round(time.monotonic() - started, 3),
        }
        self._store.commit(number, model, content)
        self._model = model
        for client in counted:
            self._versions[client] = number
        if self._scalars and counted:
            content |= self._synchronize(number, sorted(counted), digest)
        self._report(content)
        return content

    # ---- who and what ------------------------------------------------------------------------------------------

    def _sampled(self, number: int) -> list[int]:
        """Return the clients of a round: a function of seed, round and who can be asked."""
        there = sorted(self._transport.clients())
        wanted = self._store.sample
        if len(there) < wanted:
            raise StateError(
                f"round {number}",
                found=f"{len(there)} clients",
                expected=f"at least {wanted}, as many as a round asks",
                fix="Start more clients, or ask fewer (--sample).",
            )
        chosen = random.Random(f"{self._terms.seed} {number}").sample(there, wanted)
        return sorted(chosen)

    def _request(self, kind: str, number: int, client: int, since: int) -> bytes:
        return self._requests.build(kind, number, client, since, self._model)

    # ---- replies -----------------------------------------------------------------------------------------------

    def _collected(
        self, number: int, asked: Sequence[int], traffic: _Traffic
    ) -> dict[int, Accepted]:
        """Return the replies whose form is right, from disk and then from the clients."""
        found: dict[int, Accepted] = {}
        for client, content in self._store.replies(number).items():
            try:
                found[client] = self._looked_at(number, client, content)
            except Refusal:
                continue  # damaged on disk since it was kept: the client is asked again
            traffic.up += len(content)
        final = {entry["client"] for entry in self._store.refused(number) if entry["final"]}
        done = final | set(found)
        for _ in range(self._patience.attempts):
            missing = [client for client in asked if client not in done]
            if not missing:
                break
            requests = {
                client: self._request(TRAIN, number, client, self._versions.get(client, 0))
                for client in missing
            }
            for _ in range(2):  # a client may first have to say which version it has
                requests = self._answers(number, requests, found, done, traffic)
                if not requests:
                    break
        return found

    def _answers(
        self,
        number: int,
        requests: Mapping[int, bytes],
        found: dict[int, Accepted],
        done: set[int],
        traffic: _Traffic,
    ) -> dict[int, bytes]:
        """Ask, and take what comes; returns what must be asked again, of clients that were behind."""
        again: dict[int, bytes] = {}
        traffic.down += sum(map(len, requests.values()))
        for client, content in self._transport.exchange(requests, self._patience.seconds):
            if isinstance(content, str):
                self._store.refuse(number, client, content, final=False)
                continue
            traffic.up += len(content)
            if client not in requests or client in found:
                reason = "a second reply" if client in found else "not asked"
                self._store.refuse(number, client, reason, final=False)
                continue
            has = _behind(content)
            if has is not None and has <= number:
                self._versions[client] = has
                again[client] = self._request(TRAIN, number, client, has)
                continue
            try:
                found[client] = self._looked_at(number, client, content)
            except Exception as error:  # one client's reply must not end the server
                known = isinstance(error, Refusal)
                reason = str(error) if known else f"{type(error).__name__}: {first_line(error)}"
                self._store.refuse(number, client, reason)
                done.add(client)
                continue
            self._store.keep_reply(number, client, content)
            done.add(client)
        return again

    def _looked_at(self, number: int, client: int, content: bytes) -> Accepted:
        return checks.accepted(
            content,
            client=client,
            round_number=number,
            version=number,
            terms=self._terms,
            model=self._model,
        )

    def _checked(self, number: int, found: dict[int, Accepted]) -> dict[int, Accepted]:
        """Return the replies whose magnitude is within the bound; refuse the others."""
        for client, reason in checks.too_large(found, self._history("magnitudes", number)).items():
            self._refuse_once(number, client, reason)
            del found[client]
        return dict(sorted(found.items()))

    def _history(self, key: str, number: int) -> list[float]:
        """Return the numbers under ``key`` of the replies accepted in earlier rounds."""
        return [
            value
            for one in range(max(number - HISTORY, 0), number)
            for value in self._store.round(one).get(key, [])
        ]

    def _enough(self, number: int, asked: Sequence[int], found: Mapping[int, Accepted]) -> bool:
        """Return whether replies suffice for a round; False if too many were refused.

        Raises:
            StateError: too few replies arrived, but the missing ones could suffice.
        """
        least = max(1, math.ceil(self._patience.least * len(asked)))
        if len(found) >= least:
            return True
        refused = {entry["client"] for entry in self._store.refused(number) if entry["final"]}
        if len(set(asked) - refused) < least:
            return False
        raise StateError(
            f"round {number}",
            found=f"{len(found)} replies that count, of {len(asked)} clients asked",
            expected=f"at least {least}",
            fix=f"See {self._store.folder}/rounds/{number:06d}/refused.jsonl; run again to go on.",
        )

    def _refuse_once(self, number: int, client: int, reason: str) -> None:
        """Refuse a kept reply: a server that was started again finds the same reason again."""
        known = [(entry["client"], entry["reason"]) for entry in self._store.refused(number)]
        if (client, reason) not in known:
            self._store.refuse(number, client, reason)

    # ---- the next version --------------------------------------------------------------------------------------

    def _aggregated(
        self, number: int, asked: Sequence[int], counted: dict[int, Accepted]
    ) -> tuple[Model, dict[str, Any]]:
        """Return the next version and what it follows from.

        Invalid replies are refused and removed from ``counted``. If too few are left, the current
        version is returned, and ``counted`` becomes empty.
        """
        updates = Updates(
            number,
            self._terms,
            self._model,
            self._replayer,
            counted,
            lambda client, reason: self._refuse_once(number, client, reason),
        )
        history = self._history("norms", number)
        while self._enough(number, asked, counted):
            norms = [updates.norms[client] for client in sorted(counted)]
            limit = self._guard.limit(norms, history)
            model = updates.combined(self._guard, limit)
            if model is not None:
                about = {"aggregate": self._guard.aggregate, "norms": norms, "limit": limit}
                return model, about
            updates.drop_largest()
        counted.clear()
        return self._model, {"void": True}

    def _gated(
        self, number: int, model: Model, counted: dict[int, Accepted]
    ) -> tuple[Model, dict[str, Any]]:
        """Return the version after the gate (new, or previous if refused) and its evaluation."""
        if self._evaluate is None:
            return model, {}
        if self._guard.rise is None:
            return model, dict(self._evaluate(model))
        gate: dict[str, Any] = {}
        before = [
            loss
            for one in range(number)
            if (loss := evaluation_loss(self._store.round(one))) is not None
        ]
        if not before:
            gate["loss_before"] = evaluation_loss(self._evaluate(self._model))
        before += [
            loss
            for one in [gate, *map(self._store.round, range(number))]
            if (loss := one.get("loss_before")) is not None
        ]
        found = dict(self._evaluate(model))
        loss = evaluation_loss(found)
        if loss is not None and not self._guard.passes(loss, before):
            reason = f"the round's model has held-out loss {loss:.4g}, {min(before):.4g} before"
            for client in sorted(counted):
                self._refuse_once(number, client, reason)
            gate["rolled_back"] = {"loss": loss, "clients": sorted(counted)}
            counted.clear()
            return self._model, {**gate, **self._evaluate(self._model)}
        return model, {**gate, **found}

    def _synchronize(self, number: int, clients: Sequence[int], digest: str) -> dict[str, Any]:
        """Give the round's participants its scalars, and see that they now have the same model."""
        traffic, agreed = _Traffic(), []
        requests = {client: self._request(SYNC, number, client, number) for client in clients}
        traffic.down = sum(map(len, requests.values()))
        for client, content in self._transport.exchange(requests, self._patience.seconds):
            if isinstance(content, str):
                continue  # it catches up when it is asked again
            traffic.up += len(content)
            try:
                reply = Reply.unpack(content)
            except DataError:
                continue
            if client in requests and reply.digest == digest and reply.has == number + 1:
                self._versions[client] = number + 1
                agreed.append(client)
        notes = {
            "synchronized": sorted(agreed),
            "sync_bytes_up": traffic.up,
            "sync_bytes_down": traffic.down,
        }
        self._store.note(number, notes)
        return notes

    # ---- after a restart ---------------------------------------------------------------------------------------

    def _load(self, version: int) -> Model:
        """Return a version, from its file or from the rounds that led to it."""
        since = version
        while since > 0 and (model := self._store.kept_model(since, self._sizes)) is None:
            if self._replayer is None:
                raise StateError(
                    f"state {self._store.folder}",
                    found=f"no undamaged model of version {version}",
                    expected="the file that the last round wrote",
                    fix="Restore the folder from a copy.",
                )
            since -= 1
        if since == 0:
            model = self._initial
        assert model is not None
        for number in range(since, version):
            assert self._replayer is not None
            model = self._replayer.next_model(model, self._requests.scalars(number), self._terms)
            if models.digest(model) != self._store.round(number)["digest"]:
                raise StateError(
                    f"state {self._store.folder}",
                    found=f"replies of round {number} that lead to another model",
                    expected="the model that the round made",
                    fix="Restore the folder from a copy.",
                )
        return model

    def _known_versions(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for number in range(self._store.version()):
            found |= dict.fromkeys(self._store.round(number)["clients"], number)
            agreed = self._store.notes(number).get("synchronized", [])
            found |= dict.fromkeys(agreed, number + 1)
        return found


@dataclasses.dataclass
class _Traffic:
    """Bytes of messages."""

    up: int = 0
    down: int = 0


def _losses(found: Mapping[int, Accepted]) -> list[float]:
    """Return the losses that clients report."""
    every = (found[client].loss for client in sorted(found))
    return [loss for loss in every if loss is not None]


def _behind(content: bytes) -> int | None:
    """Return the version in a reply ``behind``; None for any other reply."""
    try:
        reply = Reply.unpack(content)
    except DataError:
        return None
    return reply.has if reply.status == BEHIND else None
