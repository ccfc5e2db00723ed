"""Clients in this process, one after another: for reports and tests. No Flower takes part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zoexport.federated.client import Client


class LocalTransport:
    """Asks clients by calling them, in the order of their numbers."""

    def __init__(self, clients: Mapping[int, Client]) -> None:
        self._clients = clients

    def clients(self) -> Sequence[int]:
        """All of them."""
        return sorted(self._clients)

    def exchange(
        self, requests: Mapping[int, bytes], timeout: float
    ) -> Iterator[tuple[int, bytes | str]]:
        """Yield each client's reply."""
        for client, request in requests.items():
            yield client, self._clients[client].handle(request)
