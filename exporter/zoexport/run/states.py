"""Trained weights for verbs that read them: a run's state, or a federation's newest model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.federated import FEDERATION
from zoexport.session import Session, describe_state


def attach(session: Session, state: Path, *, last: bool) -> int:
    """Load the weights of a folder read-only into a session; return the number of steps taken.

    Args:
        session: a session without an attached state.
        state: folder of a run (with its pending update), or of a federation server or simulation.
        last: for a run: use the weights of the last step, even if it keeps its best ones.

    Raises:
        StateError: the state is missing, damaged, or of another bundle.
    """
    if not (state / FEDERATION).is_file():
        session.attach(state, read_only=True, last=last)
        return session.info.steps
    from zoexport.federated.store import load

    return load(session, state)


def learned_texts(state: Path) -> bool:
    """Return whether a run is known to be trained on plain texts only, without chat template.

    Raises:
        StateError: the state is missing or damaged.
    """
    if (state / FEDERATION).is_file():
        return False
    return only_texts(describe_state(state)["data"])


def only_texts(data: Mapping[str, Any] | None) -> bool:
    """Return the same from the record ``data`` of ``run.json``; False if unknown (token data)."""
    return data is not None and data.get("conversations") == 0
