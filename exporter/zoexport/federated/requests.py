"""What the server asks: requests with what each client lacks, from the rounds on disk."""

from __future__ import annotations

from zoexport.federated import models
from zoexport.federated.aggregate import mean_trajectory
from zoexport.federated.models import Model
from zoexport.federated.protocol import SYNC, Reply, Request, RoundScalars, Trajectory
from zoexport.federated.store import Store
from zoexport.federated.terms import SCALARS


class Requests:
    """Builds the requests of a federation that is kept in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._terms = store.terms

    def build(self, kind: str, number: int, client: int, since: int, model: Model) -> bytes:
        """With what a client that has version ``since`` lacks: rounds' scalars, or a whole model where that is less.

        Args:
            model: the newest version.
        """
        rounds: list[RoundScalars] = []
        state = None
        target = number + 1 if kind == SYNC else number
        if since != target:
            missed = []
            if self._terms.how.upload == SCALARS:
                missed = [self.scalars(one) for one in range(since, target)]
            packed = models.pack(model)
            if missed and sum(one.size() for one in missed) <= len(packed):
                rounds = missed
            else:
                state, since = packed, target
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
        """What the version after a round follows from."""
        found = {
            client: self._trajectory(number, client)
            for client in self._store.round(number)["clients"]
        }
        if self._terms.how.averages == "scalars":
            return RoundScalars(number, {0: mean_trajectory(found)})
        return RoundScalars(number, found)

    def _trajectory(self, number: int, client: int) -> Trajectory:
        reply = Reply.unpack(self._store.reply(number, client))
        return Trajectory.unpack(reply.body, self._terms.steps, self._terms.scalars)
