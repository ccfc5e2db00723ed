"""Make Ed25519 keys and signatures in the files of minisign.

A signature is of the BLAKE2b-512 of a file ("ED", prehashed), with a trusted comment that it covers too. Secret keys
are encrypted with scrypt, unless they have no password. The curve is the package cryptography's.
``runtime_ops/session/manifest/signature.cpp`` checks signatures.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_file, refuse_existing

_UNTRUSTED = b"untrusted comment:"
_MOST = 8192
"""Bytes of a key's file, which has a few hundred."""
_OPERATIONS, _MEMORY = 1 << 25, 1 << 30
"""What unlocking a secret key costs: minisign's own limits, a second or two and 1 GB."""


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A public key.

    Attributes:
        number: 8 bytes that tell keys apart, chosen at random when a key is made.
        key: 32 bytes.
    """

    number: bytes
    key: bytes

    @property
    def line(self) -> str:
        """The key in base64, as its file has it."""
        return base64.b64encode(b"Ed" + self.number + self.key).decode()

    @property
    def file(self) -> str:
        """The content of its file."""
        return f"untrusted comment: minisign public key {_label(self.number)}\n{self.line}\n"


@dataclasses.dataclass(frozen=True)
class SecretKey:
    """A key that signs; ``seed`` is what it is made from, and never shown."""

    public: PublicKey
    seed: bytes = dataclasses.field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of a signature."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(message)


def generate() -> SecretKey:
    """Return a new key."""
    return _secret(os.urandom(8), os.urandom(32))


def parse_public(text: bytes, where: str) -> list[PublicKey]:
    """Return the public keys of a ``.pub`` file's content, or of several one after the other.

    Raises:
        ConfigError: something else, or none.
    """
    keys: list[PublicKey] = []
    for line in _lines(text):
        if not line or line.startswith(_UNTRUSTED):
            continue
        content = _decoded(line, 42)
        if content is None or content[:2] != b"Ed":
            keys = []
            break
        keys.append(PublicKey(content[2:10], content[10:]))
    if not keys:
        raise ConfigError(
            where,
            found="no public key of minisign's",
            expected="the .pub file that 'zoexport sign --generate' or 'minisign -G' wrote, or its second line",
            fix="Pass that file, or that line.",
        )
    return keys


def sign(key: SecretKey, content: bytes, name: str) -> str:
    """Return the signature file of a file's content.

    Args:
        key: whose signature it becomes.
        content: the file's.
        name: of the file, for the trusted comment.
    """
    head = b"ED" + key.public.number + key.sign(hashlib.blake2b(content).digest())
    comment = f"timestamp:{int(time.time())}\tfile:{name}\thashed"
    whole = key.sign(head[10:] + comment.encode())
    return (
        f"untrusted comment: signature from zoexport secret key {_label(key.public.number)}\n"
        f"{base64.b64encode(head).decode()}\n"
        f"trusted comment: {comment}\n{base64.b64encode(whole).decode()}\n"
    )


def write_key(key: SecretKey, path: Path, password: str | None, *, force: bool = False) -> Path:
    """Write a secret key and its public key into the same folder; return the public key's path.

    Args:
        key: key to write.
        path: file of the secret key; readable only by its owner.
        password: password that encrypts the key, or None.
        force: whether to overwrite existing files.

    Raises:
        ConfigError: one of them is there, or the place cannot be written.
    """
    public = path.with_suffix(".pub") if path.suffix == ".key" else Path(f"{path}.pub")
    for file in (path, public):
        refuse_existing(file, replace=force)
    body = key.public.number + key.seed + key.public.key
    body += hashlib.blake2b(b"Ed" + body, digest_size=32).digest()
    salt, kind = bytes(32), b"\0\0"
    if password is not None:
        salt, kind = os.urandom(32), b"Sc"
        body = _xor(body, password, salt, _OPERATIONS, _MEMORY)
    limits = struct.pack("<QQ", _OPERATIONS, _MEMORY) if password is not None else bytes(16)
    content = base64.b64encode(b"Ed" + kind + b"B2" + salt + limits + body).decode()
    word = "minisign encrypted secret key" if password is not None else "minisign secret key"
    with atomic_file(path, mode=0o600) as temporary:
        temporary.write_text(f"untrusted comment: {word}\n{content}\n", encoding="ascii")
    with atomic_file(public) as temporary:
        temporary.write_text(key.public.file, encoding="ascii")
    return public


def read_key(path: Path, password: Callable[[], str]) -> SecretKey:
    """Read a secret key.

    Args:
        path: file of the secret key.
        password: returns the password; called only if the key is encrypted.

    Raises:
        ConfigError: no such file, no key, or another password.
    """
    try:
        with path.open("rb") as file:
            lines = _lines(file.read(_MOST))
    except OSError as error:
        raise ConfigError(
            f"key {path}",
            found=(error.strerror or str(error)).lower(),
            expected="a secret key",
            fix="Check the path, or make a key: 'zoexport sign --generate PATH'.",
        ) from error
    content = _decoded(lines[1], 158) if len(lines) == 2 else None
    known = content is not None and content[:2] == b"Ed" and content[4:6] == b"B2"
    if content is None or not known or content[2:4] not in (b"Sc", b"\0\0"):
        raise ConfigError(
            f"key {path}",
            found="no secret key of minisign's",
            expected="the file that 'zoexport sign --generate' or 'minisign -G' wrote",
            fix="Pass the secret key, and not the .pub file.",
        )
    salt, (operations, memory), body = (
        content[6:38],
        struct.unpack("<QQ", content[38:54]),
        content[54:],
    )
    if content[2:4] == b"Sc":
        if operations > _OPERATIONS or memory > _MEMORY:
            raise ConfigError(
                f"key {path}",
                found=f"a password that costs {memory} bytes to check",
                expected=f"at most {_MEMORY}, as minisign takes",
                fix="Make another key.",
            )
        body = _xor(body, password(), salt, operations, memory)
    key = _secret(body[:8], body[8:40])
    encrypted = content[2:4] == b"Sc"
    sums = {hashlib.blake2b(b"Ed" + body[:72], digest_size=32).digest()}
    if not encrypted:
        sums.add(bytes(32))  # what minisign writes then
    if body[72:] not in sums or body[40:72] != key.public.key:
        raise ConfigError(
            f"key {path}",
            found="another password" if encrypted else "a damaged key",
            expected="the one that it was made with" if encrypted else "the key as it was made",
            fix="Run again with the right password." if encrypted else "Restore it from a copy.",
        )
    return key


def _secret(number: bytes, seed: bytes) -> SecretKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return SecretKey(PublicKey(number, public), seed)


def _xor(content: bytes, password: str, salt: bytes, operations: int, memory: int) -> bytes:
    """Encrypt or decrypt with a password, by the parameters that libsodium takes for these limits."""
    operations = max(operations, 1 << 15)
    block = 8
    largest = operations // (block * 4) if operations < memory // 32 else memory // (block * 128)
    power = next(power for power in range(1, 64) if 1 << power > largest // 2)
    parallel = (
        1 if operations < memory // 32 else min(operations // 4 >> power, 0x3FFFFFFF) // block
    )
    stream = hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=1 << power,
        r=block,
        p=max(parallel, 1),
        maxmem=(1 << 31) - 1,
        dklen=len(content),
    )
    return bytes(a ^ b for a, b in zip(content, stream, strict=True))


def _decoded(line: bytes, size: int) -> bytes | None:
    """Decode a line of base64 of ``size`` bytes; None for anything else."""
    try:
        content = base64.b64decode(line, validate=True)
    except binascii.Error:
        return None
    return content if len(content) == size and base64.b64encode(content) == line else None


def _lines(content: bytes) -> Sequence[bytes]:
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def _label(number: bytes) -> str:
    """Return a key's number as minisign prints it."""
    return f"{int.from_bytes(number, 'little'):X}"
