"""What was trained, for verbs that read it: a run's state, or the newest model of a federation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.federated import FEDERATION
from zoexport.session import Session, describe_state


def attach(session: Session, state: Path, *, last: bool) -> int:
    """Give a session what a folder has, which stays as it is; the steps that were taken for it.

    Args:
        session: with nothing attached.
        state: a run's state, whose pending update is applied, or the folder of a federation's server or simulation.
        last: of a run: the values of the last step, also where it keeps its best.

    Raises:
        StateError: there is none, it is damaged, or of another bundle.
    """
    if not (state / FEDERATION).is_file():
        session.attach(state, read_only=True, last=last)
        return session.info.steps
    from zoexport.federated.store import load

    return load(session, state)


def learned_texts(state: Path) -> bool:
    """Whether a run is known to have learned no conversation: then it is asked in none either.

    Raises:
        StateError: there is none, or it is damaged.
    """
    if (state / FEDERATION).is_file():
        return False
    return only_texts(describe_state(state)["data"])


def only_texts(data: Mapping[str, Any] | None) -> bool:
    """The same by the record ``data`` of ``run.json``; of tokens nobody knows it."""
    return data is not None and data.get("conversations") == 0
