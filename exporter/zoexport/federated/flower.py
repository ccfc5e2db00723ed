"""Flower's side of a federation: the grid that carries our messages, and the apps that it runs.

Flower 1.41's Message API: a message has one ConfigRecord with one value, the bytes of ``protocol``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zoexport.core.errors import ConfigError, DataError, first_line

_RECORD, _BODY = "zoexport", "body"
_POLL = 0.1
_LONGEST_POLL = 1.0
#: Environment that turns off the telemetry of Flower and of Ray, which runs its simulations.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def prepare() -> None:
    """Turn telemetry off, before Flower is imported for the first time, and see that it is there.

    Raises:
        ConfigError: it is not installed.
    """
    os.environ.update(QUIET)
    try:
        import flwr.app  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "federate",
            found=f"no Flower ({first_line(error)})",
            expected="the package flwr",
            fix="Install it: pip install 'zoexport[federated]'.",
        ) from error


class FlowerTransport:
    """Messages over a Flower grid.

    Args:
        grid: of a ServerApp.
        nodes: gives the node of each client's number, as they are there now.
    """

    def __init__(self, grid: Any, nodes: Callable[[], Mapping[int, int]]) -> None:
        self._grid = grid
        self._nodes = nodes

    def clients(self) -> Sequence[int]:
        """Return the numbers of the clients that are connected."""
        return sorted(self._nodes())

    def exchange(
        self, requests: Mapping[int, bytes], timeout: float
    ) -> Iterator[tuple[int, bytes | str]]:
        """Send and poll. Who answered is what Flower says, which has authenticated the node, not what a reply says."""
        from flwr.app import ConfigRecord, Message, RecordDict

        nodes = self._nodes()
        numbers = {nodes[client]: client for client in requests if client in nodes}
        for client in sorted(set(requests) - set(numbers.values())):
            yield client, "not connected"
        if not numbers:
            return
        messages = [
            Message(
                RecordDict({_RECORD: ConfigRecord({_BODY: requests[client]})}),
                node,
                "train",
                ttl=timeout,
            )
            for node, client in sorted(numbers.items(), key=lambda one: one[1])
        ]
        waiting = {identity for identity in self._grid.push_messages(messages) if identity}
        end, pause = time.monotonic() + timeout, _POLL
        while waiting and time.monotonic() < end:
            came = False
            for reply in self._grid.pull_messages(list(waiting)):
                came = True
                waiting.discard(reply.metadata.reply_to_message_id)
                client = numbers.get(reply.metadata.src_node_id, -1)
                yield client, _content(reply)
            pause = _POLL if came else min(2 * pause, _LONGEST_POLL)
            if waiting:
                time.sleep(pause)


def _content(reply: Any) -> bytes | str:
    if reply.has_error():
        return f"Flower: {reply.error.reason}"
    try:
        body = reply.content[_RECORD][_BODY]
    except (KeyError, TypeError):
        return "a message of another app"
    return body if isinstance(body, bytes) else "a message of another app"


def without_words(handle: Callable[[bytes, Any], bytes], body: bytes, context: Any) -> bytes:
    """A function's reply. Flower sends the text of an exception to the server: only its kind leaves this machine.

    Raises:
        RuntimeError: it has failed; why is on standard error, which is the node's log.
    """
    try:
        return handle(body, context)
    except Exception as error:
        kind = type(error).__name__
        sys.stderr.write(f"refused: {kind}: {error}\n")
        sys.stderr.flush()
    raise RuntimeError(kind)


def answering(handle: Callable[[bytes, Any], bytes]) -> Any:
    """A ClientApp that gives the bytes of a request, with Flower's context, to a function and returns its reply."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # Flower does not annotate it
    def train(message: Message, context: Context) -> Message:
        body = message.content[_RECORD][_BODY]
        if not isinstance(body, bytes):
            raise DataError(
                "a message of Flower",
                found="no bytes",
                expected="a request of zoexport's server",
                fix="Use the same zoexport on all sides.",
            )
        reply = ConfigRecord({_BODY: without_words(handle, body, context)})
        return Message(RecordDict({_RECORD: reply}), reply_to=message)

    return app
