"""Requests of the server, with the rounds that each client lacks, from disk."""

from __future__ import annotations

from zoexport.federated import models
from zoexport.federated.aggregate import combined_trajectory, share_kept
from zoexport.federated.models import Model
from zoexport.federated.protocol import (
    AGGREGATES,
    SCALARS_OF_ALL,
    SYNC,
    TRAIN,
    Reply,
    Request,
    RoundScalars,
    Trajectory,
)
from zoexport.federated.store import Store
from zoexport.federated.terms import SCALARS


class Requests:
    """Builds the requests of a federation that is kept in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._terms = store.terms
        self._packed: tuple[int, bytes] | None = None

    def build(self, kind: str, number: int, client: int, since: int, model: Model) -> bytes:
        """Build a request with the scalars since version ``since``, or a whole model if smaller.

        Args:
            model: the newest version.
        """
        target = number + 1 if kind == SYNC else number
        rounds: list[RoundScalars] = []
        state = None
        if since != target:
            if self._fewer_bytes(since, target, model):
                rounds = [self.scalars(one) for one in range(since, target)]
            else:
                state, since = self._packed_of(number if kind == TRAIN else target, model), target
        return Request(
            kind=kind,
            federation=self._store.federation,
            round=number,
            version=number,
            client=client,
            terms=self._terms.as_dict(),
            since=since,
            state=state,
            rounds=rounds,
        ).pack()

    def scalars(self, number: int) -> RoundScalars:
        """Return the scalars that determine the version after a round."""
        ended = self._store.round(number)
        clients: list[int] = ended["clients"]
        aggregate, limit = ended.get("aggregate", AGGREGATES[0]), ended.get("limit")
        found = {client: self._trajectory(number, client) for client in clients}
        if found and self._terms.how.averages == "scalars":
            norms = dict(zip(clients, ended.get("norms", []), strict=False))
            shares = {client: share_kept(norm, limit) for client, norm in norms.items()}
            found = {SCALARS_OF_ALL: combined_trajectory(found, aggregate, shares)}
        return RoundScalars(number, found, aggregate, limit)

    def _fewer_bytes(self, since: int, target: int, model: Model) -> bool:
        """Return whether the scalars of the missing rounds take at most the bytes of a model."""
        if self._terms.how.upload != SCALARS:
            return False
        whole = sum(values.nbytes for values in model.values())
        one = 4 * self._terms.steps * (1 + self._terms.scalars)
        size = 0
        for number in range(target - 1, since - 1, -1):
            clients = len(self._store.round(number)["clients"])
            size += one * (min(clients, 1) if self._terms.how.averages == "scalars" else clients)
            if size > whole:
                return False
        return True

    def _packed_of(self, version: int, model: Model) -> bytes:
        """Return the newest version as bytes, made once for all clients of a round."""
        if self._packed is None or self._packed[0] != version:
            self._packed = version, models.pack(model)
        return self._packed[1]

    def _trajectory(self, number: int, client: int) -> Trajectory:
        reply = Reply.unpack(self._store.reply(number, client))
        return Trajectory.unpack(reply.body, self._terms.steps, self._terms.scalars)
