"""Messages of a federation: a request that a client gets, or a reply that the server gets. They are read or refused."""

from __future__ import annotations

if __name__ == "__main__":
    import atheris  # noqa: F401

import warnings

import numpy as np

from tests.fuzz.python_target import check, instrumented, main

with instrumented():
    from zoexport.core.errors import DataError
    from zoexport.federated import checks
    from zoexport.federated.protocol import Request
    from zoexport.federated.terms import Terms

warnings.simplefilter("ignore", RuntimeWarning)  # values that overflow are refused after that
SCALARS = Terms("a" * 64, "replay", 3, 2, 5, 0.1, 0.01, "full", 4, 1, "central")
VALUES = Terms("a" * 64, "fedavg", 3, 2, 0, 0.1, 0.01, "full", 4, 1, "central")
MODEL = {"w": np.arange(6, dtype=np.float32), "é": np.ones(2, np.float32)}


def request(content: bytes) -> None:
    """As a client takes it, up to what it would replay."""
    try:
        found = Request.unpack(content)
    except DataError:
        return
    again = Request.unpack(found.pack())
    assert (again.kind, again.version, again.since) == (found.kind, found.version, found.since)
    try:
        terms = Terms.of(found.terms)
    except (KeyError, TypeError):  # which the client turns into an answer
        return
    for one in found.rounds:
        assert one.limit is None or one.limit >= 0
        for client, trajectory in one.trajectories.items():
            terms.client_seed(one.round, client)
            assert len(trajectory.records(terms.learning_rate, terms.eps)) == terms.steps


def reply(content: bytes, terms: Terms) -> None:
    """As the server takes it."""
    try:
        found = checks.accepted(
            content, client=7, round_number=4, version=4, terms=terms, model=MODEL
        )
    except checks.Refusal as refusal:
        check("\n" not in str(refusal))
        return
    assert np.isfinite(found.magnitude) and (found.loss is None or np.isfinite(found.loss))
    assert checks.too_large({7: found}, [1.0, 2.0, 3.0]).keys() <= {7}


def run(data: bytes) -> None:
    """One input: its first byte says what it is."""
    kind = data[:1]
    if kind == b"\x00":
        request(data[1:])
    else:
        reply(data[1:], SCALARS if kind == b"\x01" else VALUES)


if __name__ == "__main__":
    main(run)
