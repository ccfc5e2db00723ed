"""Federated training on Flower, whose upload is scalars (docs/federated.md).

``terms`` is what a federation agrees on; ``protocol`` has the messages and their bytes; ``models`` the trained values;
``aggregate`` replays and averages; ``client`` is what a client does with a request; ``checks`` says which replies
count; ``store`` is the server's folder and ``coordinator`` runs its rounds. Flower is imported by ``flower`` and by
what starts it.
"""

FEDERATION = "federation.json"
"""What a federation's folder has, and no run's."""
