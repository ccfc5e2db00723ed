"""Training data: JSON Lines to tokenized, shifted examples (docs/session.md says what a session does with them)."""

from __future__ import annotations

from zoexport.data.examples import (
    IGNORED,
    Candidate,
    Example,
    Examples,
    tokenize_file,
    write_examples,
)

__all__ = [
    "IGNORED",
    "Candidate",
    "Example",
    "Examples",
    "tokenize_file",
    "write_examples",
]
