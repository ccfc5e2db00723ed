"""Whose bundles may be opened: by anyone, or by holders of trusted keys alone.

What is required holds for every bundle that is opened within a scope, on whatever way:
``zoexport.session.read_manifest`` and ``Session.open`` ask here. Child processes get it by their
environment.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from zoexport.core.errors import ConfigError
from zoexport.core.minisign import PublicKey, parse_public

VARIABLE = "ZOEXPORT_TRUST"
"""Public keys, as :func:`require` takes them, separated as in PATH."""
_MOST = 8192

# None: what the environment says.
_chosen: contextvars.ContextVar[tuple[PublicKey, ...] | None] = contextvars.ContextVar(
    "trust", default=None
)


def trusted() -> tuple[PublicKey, ...]:
    """The keys of which one must have signed a bundle; none where any bundle may be opened.

    Raises:
        ConfigError: the environment names something else than keys.
    """
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    named = os.environ.get(VARIABLE, "")
    return parsed(named.split(os.pathsep), VARIABLE) if named else ()


def require(given: Iterable[str | os.PathLike[str]]) -> None:
    """Require one of these keys from here on, in this context; nothing changes where none is given.

    Args:
        given: public keys: a file, or the line of base64 that it has.

    Raises:
        ConfigError: one of them is none.
    """
    if found := parsed(given, "--trust"):
        _chosen.set(found)


@contextlib.contextmanager
def required(keys: tuple[PublicKey, ...] | None) -> Iterator[None]:
    """Require one of these keys within a block, or none at all; None changes nothing."""
    token = None if keys is None else _chosen.set(keys)
    try:
        yield
    finally:
        if token is not None:
            _chosen.reset(token)


def environment() -> dict[str, str]:
    """The variables that make a child process require the same."""
    found = trusted()
    return {VARIABLE: os.pathsep.join(key.line for key in found)} if found else {}


def parsed(given: Iterable[str | os.PathLike[str]], where: str) -> tuple[PublicKey, ...]:
    """Public keys, each given as a file or as its line of base64.

    Raises:
        ConfigError: one of them is none.
    """
    found: list[PublicKey] = []
    for each in given:
        text = os.fspath(each)
        try:
            found += parse_public(text.encode("utf-8", "surrogateescape"), where)
            continue
        except ConfigError:
            pass
        try:
            with Path(text).open("rb") as file:
                content = file.read(_MOST)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{where} {text}",
                found="no public key, and no file of this name",
                expected="a .pub file of minisign's, or its second line",
                fix="Check the path. 'zoexport sign --generate KEY' makes a key and its .pub file.",
            ) from error
        found += parse_public(content, f"{where} {text}")
    return tuple(found)
