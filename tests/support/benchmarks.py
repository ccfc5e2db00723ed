"""Conditions of made-up benchmark results."""

from __future__ import annotations

from typing import Any

CONDITIONS: dict[str, Any] = {
    "model": {"name": "m", "parameters": 1000},
    "settings": {},
    "cpu": "a CPU",
    "cores": 2,
    "threads": 2,
    "system": "Linux",
    "python": "3",
    "versions": {"torch": "2"},
    "rounds": 2,
    "steps_at_most": 5,
    "warmup": 1,
    "date": "2026-01-01T00:00:00",
    "load_average": [0.1, None],
    "random_weights": None,
    "workload": "rows",
    "baselines": ["eager"],
    "memory": "anonymous",
}
