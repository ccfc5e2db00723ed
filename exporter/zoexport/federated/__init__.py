"""Federated training on Flower, whose upload is scalars (docs/federation.md).

``terms``: settings of a federation; ``protocol``: messages and their encoding; ``models``: trained
values; ``aggregate``: replay and averaging; ``client``: request handling; ``checks``: validation
of replies; ``store``: the server's folder; ``coordinator``: the rounds. Only ``flower`` and the
modules that start it import Flower.
"""

FEDERATION = "federation.json"
"""What a federation's folder has, and no run's."""
