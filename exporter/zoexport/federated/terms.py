"""Settings that server and clients of a federation share from its first round on."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from zoexport.core.errors import ConfigError, nearest

SCALARS, VALUES = "scalars", "values"


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Federated algorithm: computes the next model from the clients' work.

    Attributes:
        upload: a client's upload: the ``scalars`` of its trajectory log, or the trained ``values``.
        averages: averaged quantity: ``models``, or the ``scalars`` of each step.
        shared_seed: whether all clients of a round use the same perturbations.
        difference: default of zeroth-order steps; None: the bundle's.
        first_order: whether its bundles train with gradients.
    """

    summary: str
    upload: str
    averages: str
    shared_seed: bool = False
    difference: str | None = None
    first_order: bool = False


ALGORITHMS: dict[str, Algorithm] = {
    "replay": Algorithm(
        "scalars up; the server replays every client and averages models (FedSPZO)",
        SCALARS,
        "models",
    ),
    "decomfl": Algorithm(
        "scalars up, of one shared seed; the server averages scalars (DeComFL)",
        SCALARS,
        "scalars",
        shared_seed=True,
        difference="forward",
    ),
    "fedzo": Algorithm(
        "zeroth-order steps; all trained values up; models averaged (FedZO)",
        VALUES,
        "models",
        difference="forward",
    ),
    "fedavg": Algorithm(
        "first-order steps; all trained values up; models averaged (FedAvg)",
        VALUES,
        "models",
        first_order=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Terms:
    """The settings of a federation; equal on all sides, and fixed once its state exists.

    Attributes:
        bundle: its id. algorithm: a key of :data:`ALGORITHMS`. seed: that all others are derived from.
        steps: of a client in a round. scalars: in a record of the trajectory log; 0 for first-order methods.
        learning_rate, eps, loss, batch, gradient_accumulation_steps, difference: of the session.
    """

    bundle: str
    algorithm: str
    seed: int
    steps: int
    scalars: int
    learning_rate: float
    eps: float
    loss: str
    batch_size: int
    gradient_accumulation_steps: int
    difference: str

    @property
    def how(self) -> Algorithm:
        """The algorithm's description."""
        return ALGORITHMS[self.algorithm]

    def as_dict(self) -> dict[str, Any]:
        """Return the terms for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Terms:
        """Return the terms that JSON has kept.

        Raises:
            TypeError, KeyError: it is something else.
        """
        types = {"int": int, "float": float, "str": str}
        kinds = {field.name: types[str(field.type)] for field in dataclasses.fields(cls)}
        if set(content) != set(kinds):
            raise KeyError(f"the keys {', '.join(sorted(content))}")
        for name, kind in kinds.items():
            if not isinstance(content[name], kind) or isinstance(content[name], bool):
                raise TypeError(f"{name} = {content[name]!r}")
        if content["algorithm"] not in ALGORITHMS:
            raise KeyError(f"the algorithm {content['algorithm']}")
        return cls(**content)

    def client_seed(self, round_number: int, client: int) -> int:
        """The seed of a client's session in a round: 64 bits of SHA-256, so that no two of a federation meet."""
        who = "all" if self.how.shared_seed else str(client)
        text = f"zoexport/federated/1 {self.seed} {round_number} {who}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def algorithm(name: str | None, *, first_order: bool) -> str:
    """Return the algorithm ``name``, or the default for the bundle's kind if None.

    Raises:
        ConfigError: unknown, or not for bundles of this kind.
    """
    chosen = name or ("fedavg" if first_order else "replay")
    if chosen not in ALGORITHMS:
        raise ConfigError(
            f"--algorithm {chosen}",
            found="no such algorithm",
            expected="one of " + ", ".join(ALGORITHMS),
            fix=f"Correct the name.{nearest(chosen, ALGORITHMS)}",
        )
    if ALGORITHMS[chosen].first_order != first_order:
        kind = "first-order" if first_order else "zeroth-order"
        fitting = [key for key, value in ALGORITHMS.items() if value.first_order == first_order]
        raise ConfigError(
            f"--algorithm {chosen}",
            found=f"a bundle of a {kind} method",
            expected="one of " + ", ".join(fitting),
            fix="Choose one of them, or compile the bundle with another method.",
        )
    return chosen
