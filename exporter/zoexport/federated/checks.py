"""Validation of replies. Refused replies are logged with a reason and never enter a round."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from zoexport.core.errors import DataError, ZoExportError
from zoexport.federated import models
from zoexport.federated.models import Model
from zoexport.federated.protocol import DONE, REFUSED, Reply, Scalars, Trajectory
from zoexport.federated.terms import SCALARS, Terms

SPREADS = 8.0
"""How many spreads above the median a reply's magnitude may lie."""
HISTORY = 64
"""Magnitudes of earlier rounds' replies that a round is compared with, the newest."""
LARGEST_LOSS = 1e4
"""Of a step; that of a model which knows nothing is the logarithm of its vocabulary."""
_LONGEST_REASON = 500
_NORMAL = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


@dataclasses.dataclass(frozen=True)
class Accepted:
    """A reply whose form is right.

    Attributes:
        magnitude: the largest of its scalars, or of the values' changes, without sign.
        trajectory: of an upload of scalars. model: of one of values.
    """

    client: int
    losses: Scalars
    magnitude: float
    digest: str
    trajectory: Trajectory | None
    model: Model | None
    size: int
    private: bool = False

    @property
    def loss(self) -> float | None:
        """Mean loss over the steps; None if the client keeps it private."""
        return None if self.private else float(self.losses.mean())


class Refusal(Exception):
    """Why a reply does not count."""


def accepted(
    content: bytes, *, client: int, round_number: int, version: int, terms: Terms, model: Model
) -> Accepted:
    """Check a reply on its own.

    Args:
        content: what came.
        client: who was asked and has answered, as the transport knows it.
        round_number, version, terms: of the request.
        model: the version that the client was to train.

    Raises:
        Refusal: it does not count.
    """
    try:
        reply = Reply.unpack(content)
    except DataError as error:
        raise Refusal(f"malformed: found {error.found}, expected {error.expected}") from error
    if reply.bundle != terms.bundle:
        raise Refusal(
            f"bundle {_shown(reply.bundle[:16])}, not {terms.bundle[:16]}: {_shown(reply.reason)}"
        )
    if (reply.round, reply.version) != (round_number, version):
        raise Refusal(
            f"stale: round {reply.round} on version {reply.version}, "
            f"not round {round_number} on version {version}"
        )
    if reply.client != client:
        raise Refusal(f"the number of client {reply.client}, from client {client}")
    if reply.status == REFUSED:
        raise Refusal(f"the client refused: {_shown(reply.reason)}")
    if reply.status != DONE:
        raise Refusal(f"status {reply.status}")
    trajectory, packed, size = None, None, len(content)
    if terms.how.upload == SCALARS:
        try:
            trajectory = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
        except DataError as error:
            raise Refusal(f"count: found {error.found}, expected {error.expected}") from error
        losses, numbers = trajectory.losses, trajectory.gradients
    else:
        try:
            losses, packed = models.unpack_values(reply.body, terms.steps, models.sizes_of(model))
        except ZoExportError as error:
            raise Refusal(f"values: found {error.found}, expected {error.expected}") from error
        numbers = np.concatenate([packed[name] - model[name] for name in sorted(model)])
    if losses.size != terms.steps or not (np.isfinite(losses).all() and np.isfinite(numbers).all()):
        raise Refusal("not finite")
    if losses.size and not (losses.min() >= 0 and losses.max() <= LARGEST_LOSS):
        raise Refusal(f"a loss outside 0..{LARGEST_LOSS:.0f}")
    if packed is not None and models.digest(packed) != reply.digest:
        raise Refusal("another digest than that of its values")
    magnitude = float(np.abs(numbers).max()) if numbers.size else 0.0
    return Accepted(
        client, losses, magnitude, reply.digest, trajectory, packed, size, reply.private
    )


def _shown(text: str) -> str:
    """Shorten a client's text to one line for the log."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:_LONGEST_REASON])


def bound(magnitudes: Sequence[float], history: Sequence[float]) -> float:
    """Return the largest accepted magnitude of a round: median + 8 max(1.4826 MAD, median).

    The spread is at least the median, as few honest replies may be closer together than usual.
    Earlier rounds' magnitudes also count, so that even a round of two has a comparison. Infinite
    if fewer than three are known.

    Args:
        magnitudes: of the round. history: of replies that counted in the rounds before.
    """
    known = [*history[-HISTORY:], *magnitudes]
    if len(known) < 3:
        return math.inf
    middle = statistics.median(known)
    spread = _NORMAL * statistics.median(abs(value - middle) for value in known)
    return middle + SPREADS * max(spread, middle)


def too_large(found: Mapping[int, Accepted], history: Sequence[float]) -> dict[int, str]:
    """Return the clients of a round whose magnitude exceeds the bound, with the reason.

    The order of replies is of no account.
    """
    limit = bound([found[client].magnitude for client in sorted(found)], history)
    return {
        client: f"magnitude {one.magnitude:.4g} above the round's bound {limit:.4g}"
        for client, one in sorted(found.items())
        if one.magnitude > limit
    }
