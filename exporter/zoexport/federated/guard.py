"""Protection of the model against any clients: update bounds and the validation gate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from zoexport.core.errors import ConfigError, nearest
from zoexport.federated.protocol import AGGREGATES

HISTORY = 64
"""Norms of earlier rounds' updates that a round is compared with, the newest."""
VOID_ROUNDS = 10
"""A server stops after so many rounds in a row in which no reply counted."""


@dataclasses.dataclass(frozen=True)
class Guard:
    """Bounds of a federation's rounds, recorded in each round; they may change at a restart.

    Attributes:
        aggregate: aggregation of the clients' updates, one of :data:`protocol.AGGREGATES`.
        norm: maximum norm of a client's update; None: no such bound.
        relative: the same in multiples of the (lower) median of recent norms; None: no such bound.
        rise: maximum relative rise of the validation loss over the lowest so far; None: no gate.
    """

    aggregate: str = AGGREGATES[0]
    norm: float | None = None
    relative: float | None = None
    rise: float | None = None

    def checked(self) -> Guard:
        """Itself.

        Raises:
            ConfigError: an aggregate that is not known.
        """
        if self.aggregate not in AGGREGATES:
            raise ConfigError(
                f"--aggregate {self.aggregate}",
                found="no such aggregate",
                expected="one of " + ", ".join(AGGREGATES),
                fix=f"Correct the name.{nearest(self.aggregate, AGGREGATES)}",
            )
        return self

    def limit(self, norms: Sequence[float], history: Sequence[float]) -> float | None:
        """Return the clipping norm for a round's updates; None if unbounded.

        Args:
            norms: norms of the round. history: norms of accepted updates of earlier rounds.
        """
        bounds = [] if self.norm is None else [self.norm]
        # The lower one of two: half of a round's clients must not set the scale. Nothing is compared with nothing.
        known = sorted(norm for norm in [*history[-HISTORY:], *norms] if norm > 0)
        if self.relative is not None and known:
            bounds.append(self.relative * known[(len(known) - 1) // 2])
        return min(bounds, default=None)

    def passes(self, loss: float, before: Sequence[float]) -> bool:
        """Return whether a version's validation loss is accepted.

        Args:
            loss: loss of the version. before: losses of accepted versions and of their initial one.
        """
        if self.rise is None:
            return True
        lowest = min((one for one in before if math.isfinite(one)), default=math.inf)
        return math.isfinite(loss) and loss <= lowest * (1 + self.rise)


def evaluation_loss(content: Any) -> float | None:
    """Return the loss in the result of ``evaluate`` or in a stored round, or None."""
    try:
        return float(content["evaluation"]["loss"])
    except (KeyError, TypeError, ValueError):
        return None
