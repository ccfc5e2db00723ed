"""What one round may do to the model, whoever its clients are: bounds on updates, and the held-out gate."""

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
    """Bounds of a federation's rounds. Each round says which it had, so that another start may have others.

    Attributes:
        aggregate: how clients' updates become one: :data:`protocol.AGGREGATES`.
        norm: the largest norm of a client's update; None: no such bound.
        relative: the same in multiples of the (lower) median of this and earlier rounds' norms; None: no such bound.
        rise: the share by which a version's held-out loss may lie above the lowest of those before; None: no gate.
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
        """The norm to which a round's updates are shortened; None where there is no bound.

        Args:
            norms: of the round. history: of updates that counted in the rounds before.
        """
        bounds = [] if self.norm is None else [self.norm]
        # The lower one of two: half of a round's clients must not set the scale. Nothing is compared with nothing.
        known = sorted(norm for norm in [*history[-HISTORY:], *norms] if norm > 0)
        if self.relative is not None and known:
            bounds.append(self.relative * known[(len(known) - 1) // 2])
        return min(bounds, default=None)

    def passes(self, loss: float, before: Sequence[float]) -> bool:
        """Whether a version's held-out loss lets it stand.

        Args:
            loss: its own. before: those of the versions that stood, and of the one that the first of them came from.
        """
        if self.rise is None:
            return True
        lowest = min((one for one in before if math.isfinite(one)), default=math.inf)
        return math.isfinite(loss) and loss <= lowest * (1 + self.rise)


def evaluation_loss(content: Any) -> float | None:
    """The loss of what an ``evaluate`` returned or a round kept; None where there is none."""
    try:
        return float(content["evaluation"]["loss"])
    except (KeyError, TypeError, ValueError):
        return None
