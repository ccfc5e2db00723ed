"""Public keys of clients: which may take part is what lies in the operator's folder, now."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from zoexport.core.errors import ConfigError, ZoExportError, first_line

_EVERY = 1.0
"""Seconds between two looks at the folder."""


class NodeKeys:
    """The keys ``NAME.pub`` of a folder, as Flower's nodes send them: PEM.

    A file that is taken away while the server runs is a client that may no longer take part.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: list[tuple[str, int, int]] | None = None
        self._known: dict[bytes, str] = {}
        self._next = 0.0

    def checked(self) -> dict[bytes, str]:
        """All keys by their bytes, each file looked at.

        Raises:
            ConfigError: none, one that is no key for Flower, or one key under two names.
        """
        found: dict[bytes, str] = {}
        for path in self.paths():
            key = _pem(path)
            if key in found:
                raise ConfigError(
                    str(path),
                    found=f"the key of {found[key]} again",
                    expected="a key of its own for each name",
                    fix="Take one of the two files away.",
                )
            found[key] = path.stem
        if not found:
            raise ConfigError(
                f"--nodes {self._folder}",
                found="no public key",
                expected="a file NAME.pub for each client that may take part",
                fix="Make keys as docs/federation.md says, and copy the public halves there.",
            )
        return found

    def paths(self) -> list[Path]:
        """Return the files, by name."""
        return sorted(self._folder.glob("*.pub"))

    def current(self) -> dict[bytes, str]:
        """Names by key, as the folder has them now, or had them a second ago. What is no key is nobody's."""
        now = time.monotonic()
        if now < self._next:
            return self._known
        self._next = now + _EVERY
        seen = [(path.name, *_stamp(path)) for path in self.paths()]
        if seen != self._seen:
            self._seen = seen
            known: dict[bytes, str] = {}
            for path in self.paths():
                try:
                    known.setdefault(_pem(path), path.stem)
                except ZoExportError:
                    continue
            self._known = known
        return self._known


def fingerprint(key: bytes) -> str:
    """Return a key, short, for logs."""
    return hashlib.sha256(key).hexdigest()[:16]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def _pem(path: Path) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_public_key,
    )

    try:
        key = load_ssh_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("not of an elliptic curve")
    except Exception as error:  # cryptography has exceptions of its own
        raise ConfigError(
            str(path),
            found=f"no ECDSA key ({first_line(error)})",
            expected="the public half of what ssh-keygen -t ecdsa makes",
            fix="Make keys as docs/federation.md says.",
        ) from error
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
