"""Trust in bundles: all bundles, or only those signed with a trusted key."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from zoexport.core.errors import ConfigError
from zoexport.core.minisign import PublicKey, parse_public

VARIABLE = "ZOEXPORT_TRUST"
"""The environment's public keys, separated as in PATH, for whoever is given none."""
_MOST = 8192


@dataclasses.dataclass(frozen=True)
class Trust:
    """Trusted public keys in base64, one of them needed for a bundle; empty: any bundle opens."""

    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Trusted, where: str = "trust") -> Trust:
        """The trust in these public keys, each a file or its line; None: in those of the environment.

        Raises:
            ConfigError: one of them is no key, or there are none.
        """
        if isinstance(given, Trust):
            return given
        if given is None:
            named = os.environ.get(VARIABLE)
            return cls.of(named.split(os.pathsep), VARIABLE) if named else ANYONE
        keys = tuple(key.line for one in given for key in _parsed(os.fspath(one), where))
        if not keys:
            raise ConfigError(
                where,
                found="no public key",
                expected="at least one",
                fix="Leave it out to open any bundle.",
            )
        return cls(keys)


Trusted: TypeAlias = "Trust | Iterable[str | os.PathLike[str]] | None"
"""What :meth:`Trust.of` takes."""
ANYONE = Trust()


def _parsed(text: str, where: str) -> list[PublicKey]:
    try:
        return parse_public(text.encode("utf-8", "surrogateescape"), where)
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
    return parse_public(content, f"{where} {text}")
