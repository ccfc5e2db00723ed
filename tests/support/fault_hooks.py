"""What a faulty participant of a federation does, put over the real code of its process (``faulty/sitecustomize.py``).

``$ZOEXPORT_TEST_FAULTS`` is a JSON file: for a client ``{round: fault}``, for the server ``{"reply ROUND": count}``
(killed when it has kept so many replies of the round) and ``{"commit ROUND": 1}`` (killed once the new model is on
disk). Each kills once: a file beside it remembers.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.federated import models
from zoexport.federated.client import Client
from zoexport.federated.protocol import TRAIN, Reply, Request, Trajectory
from zoexport.federated.store import Store

FILE = Path(os.environ["ZOEXPORT_TEST_FAULTS"])
FAULTS: dict[str, Any] = json.loads(FILE.read_text("utf-8"))


def die_once(what: str) -> None:
    mark = FILE.with_name(f"{FILE.name}.{what}".replace(" ", "-"))
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def tampered(request: Request, reply: Reply, fault: str) -> Reply:
    """The client's reply with a fault."""
    if fault in ("nan", "huge"):
        steps, scalars = request.terms["steps"], request.terms["scalars"]
        found = Trajectory.unpack(reply.body, steps, scalars)
        gradients = np.array(found.gradients)
        gradients[0, 0] = np.nan if fault == "nan" else 1e30
        return dataclasses.replace(reply, body=Trajectory(found.losses, gradients).pack())
    if fault == "stale":
        return dataclasses.replace(reply, round=reply.round - 1, version=reply.version - 1)
    if fault == "bundle":
        return dataclasses.replace(reply, bundle="f" * 64)
    return reply


def faulty_handle(original: Any) -> Any:
    def handle(self: Client, content: bytes) -> bytes:
        request = Request.unpack(content)
        fault = FAULTS.get(str(request.round), "") if request.kind == TRAIN else ""
        if fault == "killed":
            die_once(f"killed {request.round}")
        reply: bytes = original(self, content)
        return tampered(request, Reply.unpack(reply), fault).pack() if fault else reply

    return handle


def faulty_keep_reply(original: Any) -> Any:
    def keep_reply(self: Store, number: int, client: int, content: bytes) -> None:
        original(self, number, client, content)
        if len(self.replies(number)) == FAULTS.get(f"reply {number}"):
            die_once(f"reply {number}")

    return keep_reply


def faulty_keep(original: Any) -> Any:
    def keep(path: Path, model: models.Model) -> None:
        original(path, model)
        number = int(path.stem.removeprefix("model-")) - 1
        if f"commit {number}" in FAULTS:
            die_once(f"commit {number}")

    return keep


def pushing_twice() -> None:
    """The process gives its reply to the node twice."""
    from flwr.supernode.runtime import run_clientapp

    original = run_clientapp.push_message

    def push_message(client: Any, message: Any, context: Any) -> None:
        original(client, message, context)
        original(client, message, context)

    run_clientapp.push_message = push_message


Client.handle = faulty_handle(Client.handle)  # type: ignore[method-assign]
Store.keep_reply = faulty_keep_reply(Store.keep_reply)  # type: ignore[method-assign]
models.keep = faulty_keep(models.keep)
if "twice" in FAULTS.values():
    pushing_twice()
