"""Replay and averaging; server and clients compute bitwise identical results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.federated import models
from zoexport.federated.models import Model
from zoexport.federated.protocol import AGGREGATES, RoundScalars, Trajectory
from zoexport.federated.terms import Terms
from zoexport.session import Bundle, no_programs

MEAN, TRIMMED_MEAN, MEDIAN = AGGREGATES
TRIMMED = 0.2
"""The share of clients that a trimmed mean leaves out at each end; at least one of three."""

Values = Mapping[str, NDArray[np.floating[Any]]]


class Replayer:
    """Replays trajectories over one bundle, without its programs."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        with bundle.session(engine=no_programs) as session:
            self._slots = models.trained_slots(session)
        self._halves = {slot.name for slot in self._slots if slot.dtype == "float16"}

    def model(self, model: Model, seed: int, trajectory: Trajectory, terms: Terms) -> Model:
        """Return the model that a client's session has after its steps, the last update applied.

        Raises:
            ConfigError: a trajectory that training cannot have made.
        """
        # The files were hashed when this object was made.
        with self._bundle.session(engine=no_programs, verify=False) as session:
            models.write(session, model)
            session.configure(seed=seed)
            session.follow(trajectory.records(terms.learning_rate, terms.eps))
            return models.read(session, self._slots)

    def rounded(self, model: Mapping[str, NDArray[np.float64]]) -> Model:
        """An average as slots hold it: each value rounded once, to nearest, to its slot's floats."""
        with np.errstate(over="ignore"):  # what is infinite then is refused
            return {
                name: values.astype(np.float16).astype(np.float32)
                if name in self._halves
                else values.astype(np.float32)
                for name, values in model.items()
            }

    def next_model(self, model: Model, found: RoundScalars, terms: Terms) -> Model:
        """The version after a round, from its scalars; the same model after a round in which nobody counted."""
        if not found.trajectories:
            return model
        if terms.how.averages == "scalars":
            (averaged,) = found.trajectories.values()
            return self.model(model, terms.client_seed(found.round, 0), averaged, terms)
        replayed = (
            self.model(model, terms.client_seed(found.round, client), trajectory, terms)
            for client, trajectory in sorted(found.trajectories.items())
        )
        return self.rounded(
            combined((clipped(one, model, found.limit) for one in replayed), found.aggregate)
        )


def update_norm(model: Values, base: Model) -> float:
    """Return the Euclidean norm of what a client has changed, over all values together."""
    square = 0.0
    for name in sorted(base):
        change = model[name].astype(np.float64) - base[name]
        square += float(np.dot(change, change))
    return float(np.sqrt(square))


def share_kept(norm: float, limit: float | None) -> float:
    """Return the factor that clips an update of norm ``norm`` to ``limit``."""
    return 1.0 if limit is None or norm <= limit else limit / norm


def clipped(model: Model, base: Model, limit: float | None) -> Values:
    """Return a client's model with its update clipped to norm ``limit``."""
    share = share_kept(update_norm(model, base), limit) if limit is not None else 1.0
    if share == 1.0:
        return model
    return {
        name: base[name] + share * (values.astype(np.float64) - base[name])
        for name, values in model.items()
    }


def combined(found: Iterable[Values], how: str) -> dict[str, NDArray[np.float64]]:
    """Combine models in float64; callers pass them in the order of client numbers.

    A mean holds one model and the sums in memory; other aggregates hold all models.
    """
    if how == MEAN:
        return mean(found)
    every = list(found)
    return {name: _middle([one[name] for one in every], how) for name in every[0]}


def mean(found: Iterable[Values]) -> dict[str, NDArray[np.float64]]:
    """Return the mean of models, added up in float64 in the order given."""
    sums: dict[str, NDArray[np.float64]] = {}
    count = 0
    for model in found:
        count += 1
        for name, values in model.items():
            if name in sums:
                sums[name] += values
            else:
                sums[name] = values.astype(np.float64)
    return {name: total / count for name, total in sums.items()}


def combined_trajectory(
    found: Mapping[int, Trajectory],
    how: str = MEAN,
    shares: Mapping[int, float] | None = None,
) -> Trajectory:
    """Combine the scalars of each step over all clients, in float64, by client number.

    Args:
        shares: factor for each client's gradients, default 1. An update is linear in them.
    """
    ordered = sorted(found)
    losses = [found[client].losses for client in ordered]
    gradients: list[NDArray[np.float64]] = [
        found[client].gradients.astype(np.float64) * (shares or {}).get(client, 1.0)
        for client in ordered
    ]
    return Trajectory(
        _as_one(losses, how).astype(np.float32), _as_one(gradients, how).astype(np.float32)
    )


def _as_one(values: Sequence[NDArray[np.floating[Any]]], how: str) -> NDArray[np.float64]:
    if how != MEAN:
        return _middle(values, how)
    total = values[0].astype(np.float64)
    for other in values[1:]:
        total += other
    return total / len(values)


def _middle(values: Sequence[NDArray[np.floating[Any]]], how: str) -> NDArray[np.float64]:
    """Value by value: the median, or the mean without the ends."""
    ordered = np.sort(np.stack([one.astype(np.float64) for one in values]), axis=0)
    count = len(ordered)
    trimmed = max(int(TRIMMED * count), 1) if count >= 3 else 0
    cut = (count - 1) // 2 if how == MEDIAN else trimmed
    kept = ordered[cut : count - cut]
    total = kept[0].copy()
    for other in kept[1:]:
        total += other
    return np.asarray(total / len(kept))
