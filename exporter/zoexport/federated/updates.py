"""A round's updates on the server: each client's, looked at alone, and then all as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zoexport.core.errors import DivergedError, ZoExportError
from zoexport.federated import models
from zoexport.federated.aggregate import (
    Replayer,
    clipped,
    combined,
    combined_trajectory,
    share_kept,
    update_norm,
)
from zoexport.federated.checks import Accepted
from zoexport.federated.guard import Guard
from zoexport.federated.models import Model
from zoexport.federated.protocol import SCALARS_OF_ALL, RoundScalars
from zoexport.federated.terms import Terms

_KEPT_BYTES = 256 << 20
"""Replayed models that are kept between the two looks at them; beyond it a client is replayed again."""


class Updates:
    """The updates of a round's replies.

    Args:
        number: of the round. terms, model: of the federation, and the version that clients trained on.
        replayer: of uploads of scalars; None for values.
        refuse: called with a client whose reply turns out not to count, and why.
    """

    def __init__(
        self,
        number: int,
        terms: Terms,
        model: Model,
        replayer: Replayer | None,
        counted: dict[int, Accepted],
        refuse: Callable[[int, str], None],
    ) -> None:
        self._number = number
        self._terms = terms
        self._base = model
        self._replayer = replayer
        self._counted = counted
        self._refuse = refuse
        self._kept: dict[int, Model] = {}
        self._kept_bytes = 0
        #: Norm of each client's update.
        self.norms: dict[int, float] = {}
        for client in list(counted):
            self._look_at(client)

    def combined(self, guard: Guard, limit: float | None) -> Model | None:
        """Return the next version; None if the clients' mean diverges or is not finite."""
        try:
            model = self._of_all(guard, limit)
        except DivergedError:
            return None
        return model if models.finite(model) else None

    def drop_largest(self) -> None:
        """Let the reply of the largest update not count."""
        largest = max(self._counted, key=lambda client: (self.norms[client], client))
        self._drop(largest, "the round's mean with it is no model")

    def _of_all(self, guard: Guard, limit: float | None) -> Model:
        if self._terms.how.averages == "scalars":
            assert self._replayer is not None
            shares = {client: share_kept(norm, limit) for client, norm in self.norms.items()}
            found = {
                client: one.trajectory
                for client, one in self._counted.items()
                if one.trajectory is not None
            }
            averaged = combined_trajectory(found, guard.aggregate, shares)
            scalars = RoundScalars(self._number, {SCALARS_OF_ALL: averaged})
            return self._replayer.next_model(self._base, scalars, self._terms)
        every = combined(
            (clipped(self._model(client), self._base, limit) for client in sorted(self._counted)),
            guard.aggregate,
        )
        if self._replayer is not None:
            return self._replayer.rounded(every)
        return {name: values.astype(np.float32) for name, values in every.items()}

    def _look_at(self, client: int) -> None:
        """Replay a client, and measure its update."""
        try:
            model = self._model(client)
        except ZoExportError as error:
            return self._drop(client, f"cannot be replayed: {error}")
        if not models.finite(model):
            return self._drop(client, "its replay is not finite")
        if self._replayer is not None and models.digest(model) != self._counted[client].digest:
            return self._drop(client, "its replay is another state")
        with np.errstate(over="ignore"):
            norm = update_norm(model, self._base)
        if not np.isfinite(norm):
            return self._drop(client, "the norm of its update is not finite")
        self.norms[client] = norm
        size = sum(values.nbytes for values in model.values())
        if self._kept_bytes + size <= _KEPT_BYTES:
            self._kept[client] = model
            self._kept_bytes += size

    def _drop(self, client: int, reason: str) -> None:
        self._refuse(client, reason)
        del self._counted[client]
        self.norms.pop(client, None)
        self._kept.pop(client, None)

    def _model(self, client: int) -> Model:
        if client in self._kept:
            return self._kept[client]
        one = self._counted[client]
        if one.model is not None:
            return one.model
        assert one.trajectory is not None and self._replayer is not None
        seed = self._terms.client_seed(self._number, client)
        return self._replayer.model(self._base, seed, one.trajectory, self._terms)
