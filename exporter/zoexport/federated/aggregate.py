"""Replaying clients and averaging: what server and clients compute alike, to the last bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoexport.federated import models
from zoexport.federated.models import Model
from zoexport.federated.protocol import RoundScalars, Trajectory
from zoexport.federated.terms import Terms
from zoexport.session import Session, no_programs


class Replayer:
    """Replays trajectories over one bundle, without its programs."""

    def __init__(self, bundle: Path) -> None:
        self._bundle = bundle
        with Session.open(bundle, engine=no_programs) as session:
            self._slots = models.trained_slots(session)
        self._halves = {slot.name for slot in self._slots if slot.dtype == "float16"}

    def model(self, model: Model, seed: int, trajectory: Trajectory, terms: Terms) -> Model:
        """The model that a client's session has after its steps, the last update applied.

        Raises:
            ConfigError: a trajectory that training cannot have made.
        """
        # The files were hashed when this object was made.
        with Session.open(self._bundle, engine=no_programs, verify=False) as session:
            models.write(session, model)
            session.configure(seed=seed)
            session.follow(trajectory.records(terms.lr, terms.eps))
            return models.read(session, self._slots)

    def rounded(self, model: Mapping[str, NDArray[np.float64]]) -> Model:
        """An average as slots hold it: each value rounded once, to nearest, to its slot's floats."""
        return {
            name: values.astype(np.float16).astype(np.float32)
            if name in self._halves
            else values.astype(np.float32)
            for name, values in model.items()
        }

    def next_model(self, model: Model, found: RoundScalars, terms: Terms) -> Model:
        """The version after a round, from its scalars."""
        if terms.how.averages == "scalars":
            seed = terms.client_seed(found.round, 0)
            return self.model(model, seed, mean_trajectory(found.trajectories), terms)
        return self.rounded(
            mean(
                self.model(model, terms.client_seed(found.round, client), trajectory, terms)
                for client, trajectory in sorted(found.trajectories.items())
            )
        )


def mean(found: Iterable[Model]) -> dict[str, NDArray[np.float64]]:
    """The mean of models, added up in float64 in the order given: callers give that of clients' numbers.

    One model is in memory at a time, beside the sums.
    """
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


def mean_trajectory(found: Mapping[int, Trajectory]) -> Trajectory:
    """Each step's scalars averaged over clients, in float64 and the order of their numbers."""
    ordered = [found[client] for client in sorted(found)]

    def average(values: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        total = values[0].astype(np.float64)
        for other in values[1:]:
            total += other
        return (total / len(values)).astype(np.float32)

    return Trajectory(
        average([one.losses for one in ordered]), average([one.gradients for one in ordered])
    )
