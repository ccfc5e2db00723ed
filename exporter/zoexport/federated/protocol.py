"""The messages between server and clients, and their bytes.

A message is one line of JSON and then the binary parts that the line counts: float32, little-endian. The same bytes
pass through any transport, so what is counted here is what is sent, but for the transport's own framing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoexport.core import outside
from zoexport.core.errors import DataError
from zoexport.session import Record

PROTOCOL = 2
TRAIN, SYNC = "train", "sync"
DONE, BEHIND, REFUSED = "done", "behind", "refused"
AGGREGATES = ("mean", "trimmed-mean", "median")
"""How clients' values become one, value by value."""
SCALARS_OF_ALL = 0
_LONGEST_HEADER = 1 << 20
_SCALAR = np.dtype("<f4")

Scalars = NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The scalars of a client's steps.

    Attributes:
        losses: (steps). gradients: (steps, scalars of a record).
    """

    losses: Scalars
    gradients: Scalars

    def pack(self) -> bytes:
        """``losses`` and then ``gradients``, row-major."""
        return self.losses.astype(_SCALAR).tobytes() + self.gradients.astype(_SCALAR).tobytes()

    @classmethod
    def unpack(cls, content: bytes, steps: int, scalars: int) -> Trajectory:
        """Return the trajectory that :meth:`pack` wrote.

        Raises:
            DataError: another number of bytes.
        """
        expected = steps * (1 + scalars) * _SCALAR.itemsize
        if len(content) != expected:
            raise _malformed(
                f"{len(content)} bytes of scalars", f"{expected}, for {steps} steps of {scalars}"
            )
        values = np.frombuffer(content, _SCALAR).astype(np.float32)
        return cls(values[:steps], values[steps:].reshape(steps, scalars))

    def records(self, learning_rate: float, eps: float) -> list[Record]:
        """The records of the trajectory log, which every step's learning_rate and eps complete."""
        return [
            Record(step, learning_rate, eps, float(loss), tuple(map(float, gradients)))
            for step, (loss, gradients) in enumerate(zip(self.losses, self.gradients, strict=True))
        ]

    @classmethod
    def of(cls, records: Sequence[Record]) -> Trajectory:
        """Return the scalars of a trajectory log."""
        return cls(
            np.array([record.loss for record in records], np.float32),
            np.array([record.gradients for record in records], np.float32),
        )


@dataclasses.dataclass(frozen=True)
class RoundScalars:
    """Averaged trajectories of a round by client, which determine its new model.

    Without trajectories the round left the model unchanged. If the scalars themselves are averaged,
    the only key is :data:`SCALARS_OF_ALL`.

    Attributes:
        aggregate: aggregation of the clients' models (``aggregate``).
        limit: clipping norm of each client's update, or None.
    """

    round: int
    trajectories: Mapping[int, Trajectory]
    aggregate: str = "mean"
    limit: float | None = None

    def size(self) -> int:
        """Its bytes in a message, without the line of JSON."""
        return sum(len(one.pack()) for one in self.trajectories.values())


@dataclasses.dataclass(frozen=True)
class Request:
    """The server's: train on version ``version``, or (``sync``) make the version after it.

    Attributes:
        federation: which one: what a client keeps of another is nothing here.
        client: the number of the client that is asked.
        terms: of the federation.
        state: a whole model that a client behind ``since`` begins from, or None.
        since: the version that ``state``, or without one the client, has; ``rounds`` lead from it to ``version``
            (``train``), or to the version after it (``sync``).
    """

    kind: str
    federation: str
    round: int
    version: int
    client: int
    terms: Mapping[str, Any]
    since: int
    state: bytes | None = None
    rounds: Sequence[RoundScalars] = ()

    def pack(self) -> bytes:
        """Serialize the request."""
        listed = [
            {
                "round": one.round,
                "clients": sorted(one.trajectories),
                "aggregate": one.aggregate,
                "limit": one.limit,
            }
            for one in self.rounds
        ]
        parts = [
            one.trajectories[client].pack()
            for one in self.rounds
            for client in sorted(one.trajectories)
        ]
        header = {
            "kind": self.kind,
            "federation": self.federation,
            "round": self.round,
            "version": self.version,
            "client": self.client,
            "terms": dict(self.terms),
            "since": self.since,
            "state": self.state is not None,
            "rounds": listed,
        }
        return _pack(header, ([] if self.state is None else [self.state]) + parts)

    @classmethod
    def unpack(cls, content: bytes) -> Request:
        """Return the request that :meth:`pack` wrote.

        Raises:
            DataError: it is something else.
        """
        header, parts = _unpack(content)
        try:
            terms = header["terms"]
            steps = _number(terms["steps"])
            # An average has the numbers of one client's trajectory.
            scalars = _number(terms["scalars"])
            state = parts.pop(0) if header["state"] else None
            rounds = []
            for listed in header["rounds"]:
                found = {
                    _number(client): Trajectory.unpack(parts.pop(0), steps, scalars)
                    for client in listed["clients"]
                }
                rounds.append(
                    RoundScalars(
                        _number(listed["round"]),
                        found,
                        _one_of(listed["aggregate"], AGGREGATES),
                        _limit(listed["limit"]),
                    )
                )
            return cls(
                kind=_one_of(header["kind"], (TRAIN, SYNC)),
                federation=str(header["federation"]),
                round=_number(header["round"]),
                version=_number(header["version"]),
                client=_number(header["client"]),
                terms=terms,
                since=_number(header["since"]),
                state=state,
                rounds=rounds,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise _malformed(f"a request without {error}", "a request of this protocol") from error


@dataclasses.dataclass(frozen=True)
class Reply:
    """A client's.

    Attributes:
        status: ``done``; ``behind``: it has another version than the server believed, ``has``; or ``refused``.
        bundle: the id of the bundle that it has.
        digest: of the model that its session has after its steps, or after the synchronization.
        reason: of a refusal.
        private: whether noise was added to the body (``privacy``), whose losses then say nothing.
        body: scalars (:class:`Trajectory`), or values.
    """

    status: str
    round: int
    version: int
    client: int
    bundle: str
    has: int
    digest: str = ""
    reason: str = ""
    private: bool = False
    body: bytes = b""

    def pack(self) -> bytes:
        """Serialize the reply."""
        header = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "body"
        }
        return _pack(header, [self.body])

    @classmethod
    def unpack(cls, content: bytes) -> Reply:
        """Return the reply that :meth:`pack` wrote.

        Raises:
            DataError: it is something else.
        """
        header, parts = _unpack(content)
        try:
            (body,) = parts
            return cls(
                status=_one_of(header["status"], (DONE, BEHIND, REFUSED)),
                round=_number(header["round"]),
                version=_number(header["version"]),
                client=_number(header["client"]),
                bundle=str(header["bundle"]),
                has=_number(header["has"]),
                digest=str(header["digest"]),
                reason=str(header["reason"]),
                private=header["private"] is True,
                body=body,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise _malformed(f"a reply without {error}", "a reply of this protocol") from error


def _pack(header: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
    line = {"protocol": PROTOCOL, "parts": [len(part) for part in parts], **header}
    return (
        json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n" + b"".join(parts)
    )


def _unpack(content: bytes) -> tuple[dict[str, Any], list[bytes]]:
    end = content.find(b"\n", 0, _LONGEST_HEADER)
    try:
        header = outside.parse(content[: max(end, 0)])
        if header["protocol"] != PROTOCOL:
            raise _malformed(f"protocol {header['protocol']}", f"protocol {PROTOCOL}")
        sizes = [_number(size) for size in header["parts"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _malformed("no line of JSON with protocol and parts", "a message") from error
    at, parts = end + 1, []
    for size in sizes:
        parts.append(content[at : at + size])
        at += size
    if at != len(content):
        raise _malformed(f"{len(content)} bytes", f"{at}, as the first line says")
    return header, parts


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"a number (it is {value!r})")
    return value


def _limit(value: object) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise TypeError(f"a limit (it is {value!r})")
    return float(value)


def _one_of(value: object, known: Sequence[str]) -> str:
    if value not in known:
        raise TypeError(f"one of {', '.join(known)} (it is {value!r})")
    return str(value)


def _malformed(found: str, expected: str) -> DataError:
    return DataError(
        "federated message",
        found=found,
        expected=expected,
        fix="Use the same zoexport on all sides.",
    )
