"""Federations of tiny bundles in this process."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.federated.client import Client
from zoexport.federated.coordinator import Coordinator, Patience
from zoexport.federated.local import LocalTransport
from zoexport.federated.store import Store
from zoexport.federated.terms import ALGORITHMS, Terms
from zoexport.session import Bundle, Dataset, Session, no_programs

EXAMPLES = 6
LONGEST = 12


def examples(client: int, loss: str = "full") -> Dataset:
    """A client's own, from its number alone."""
    generator = np.random.default_rng(1000 + client)
    dataset = Dataset()
    for _ in range(EXAMPLES):
        tokens = [int(token) for token in generator.integers(0, 50, LONGEST)]
        dataset.add([(tokens[:-1], tokens[1:])], 0)
    return dataset


def write_choices(path: Path) -> Path:
    """A file of 300 short sentences, half of which are good and half bad."""
    generator = np.random.default_rng(0)
    words = ["a", "film", "was", "long", "short", "it"]
    lines = [
        {
            "prompt": " ".join(generator.choice(words, 5)),
            "completion": end,
            "choices": [" good", " bad"],
        }
        for end in (" good", " bad")
        for _ in range(150)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def terms_of(bundle: Path, algorithm: str = "replay", **changes: Any) -> Terms:
    """Terms of a bundle's own settings, but three steps a round."""
    with Session.open(bundle, engine=no_programs) as session:
        run, info = session.settings, session.info
    values: dict[str, Any] = {
        "bundle": info.bundle_id,
        "algorithm": algorithm,
        "seed": 5,
        "steps": 3,
        "scalars": info.num_queries,
        "learning_rate": run["learning_rate"],
        "eps": run.get("eps", 0.0),
        "loss": run["loss"],
        "batch_size": 2,
        "gradient_accumulation_steps": 1,
        "difference": ALGORITHMS[algorithm].difference or run.get("difference", "central"),
    }
    return Terms(**{**values, **changes})


def clients_of(bundle: Path, folder: Path, count: int) -> dict[int, Client]:
    return {
        number: Client(Bundle.open(bundle), examples, folder / f"client-{number}")
        for number in range(count)
    }


#: Changes what a transport brings: the request's client and the replies that come of it.
Tamper = Callable[[int, bytes], list[tuple[int, "bytes | str"]]]


class Network(LocalTransport):
    """Clients whose replies come in an order of its own, tampered with, and are counted."""

    def __init__(
        self,
        clients: Mapping[int, Client],
        *,
        shuffle: int | None = None,
        tamper: Tamper | None = None,
    ) -> None:
        super().__init__(clients)
        self.asked: list[list[int]] = []
        self.requests: list[tuple[int, bytes]] = []
        self._shuffle = random.Random(shuffle) if shuffle is not None else None
        self._tamper = tamper

    def exchange(
        self, requests: Mapping[int, bytes], timeout: float
    ) -> Iterator[tuple[int, bytes | str]]:
        self.asked.append(sorted(requests))
        self.requests += sorted(requests.items())
        order = list(requests)
        if self._shuffle:
            self._shuffle.shuffle(order)
        for client, reply in super().exchange({one: requests[one] for one in order}, timeout):
            assert isinstance(reply, bytes)
            yield from self._tamper(client, reply) if self._tamper else [(client, reply)]


@contextlib.contextmanager
def federation(
    folder: Path,
    bundle: Path,
    terms: Terms,
    transport: LocalTransport,
    *,
    sample: int,
    patience: Patience | None = None,
    store: type[Store] = Store,
) -> Iterator[Coordinator]:
    """A coordinator over a store in ``folder/server``."""
    with store.opened(folder / "server", terms, sample, bundle) as opened:
        yield Coordinator(
            opened,
            Bundle.open(bundle),
            transport,
            patience=patience or Patience(seconds=5),
            report=lambda content: None,
        )


def check_two_rounds(bundle: Path, folder: Path, terms: Terms) -> None:
    """Three clients, all of them in each round: the model moves, and stays finite."""
    network = Network(clients_of(bundle, folder, 3))
    with federation(folder, bundle, terms, network, sample=3) as server:
        start = {name: values.copy() for name, values in server.model.items()}
        for number in range(2):
            server.run_round(number)
        assert any(not np.array_equal(start[name], server.model[name]) for name in start)
        assert all(np.isfinite(values).all() for values in server.model.values())
