"""Flower's SuperNode as ``federate client`` runs it: no app but ours is taken from a server.

Flower can check who signed an app (``--trusted-entities``), but only by signatures that its hub hands to the SuperLink;
an app from one's own server has none. So this module checks the one call that delivers an app.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from zoexport.federated import flower, flower_app

FOREIGN_APP = 76
"""The exit status of a process that was sent another app."""


def pin(client: type[Any], expected: str) -> None:
    """Let Flower's client of the Fleet API return only our app; end the process otherwise."""
    original = client.GetFab

    def get_fab(self: Any, request: Any) -> Any:
        response = original(self, request)
        try:
            found = flower_app.content_hash(response.fab.content)
        except ValueError as error:
            found = f"none ({error})"
        if found != expected:
            sys.stderr.write(f"refused: an app with hash {found}, not {expected}\n")
            sys.stderr.flush()
            os._exit(FOREIGN_APP)
        return response

    client.GetFab = get_fab


def main() -> None:
    """Run ``flower-supernode`` with this process's arguments."""
    flower.prepare()
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.fleet_http_client import FleetHttpClient

    pin(FleetHttpClient, flower_app.our_hash())
    flower_supernode()


if __name__ == "__main__":
    main()
