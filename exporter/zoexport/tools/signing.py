"""``zoexport sign``: keys, and signatures of bundles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zoexport.core import manifest as manifests
from zoexport.core import minisign
from zoexport.core.files import atomic_file
from zoexport.core.trust import ANYONE
from zoexport.session.host import manifest_text


def make_key(path: Path, *, password: str | None, force: bool = False) -> dict[str, Any]:
    """Generate a signing key in minisign's format.

    Args:
        path: file of the secret key; the public key is next to it, with ``.pub`` for ``.key``.
        password: encrypts the secret key; None stores it unencrypted.
        force: whether to replace existing files.

    Returns:
        The keys of ``sign --generate --json``.

    Raises:
        ConfigError: the files are there already or cannot be written.
    """
    key = minisign.generate()
    public = minisign.write_key(key, path, password, force=force)
    return {"key": str(path), "public_key_file": str(public), "public_key": key.public.line}


def sign_bundle(bundle: Path, *, key: Path, password: Callable[[], str]) -> dict[str, Any]:
    """Sign a bundle, after all of its files were checked against its manifest.

    The manifest has the SHA-256 of every file, so that its signature is that of the bundle. One that is there is
    replaced.

    Args:
        bundle: its folder.
        key: the secret key's file.
        password: returns the password; called only if the key is encrypted.

    Returns:
        The keys of ``sign --json``.

    Raises:
        ZoExportError: the bundle is damaged, the key cannot be used, or the signature not be written.
    """
    content = manifest_text(bundle, ANYONE)  # whoever signed it before
    found = json.loads(content)
    manifests.check_files(bundle, found, hashes=True)
    secret = minisign.read_key(key, password)
    signature = minisign.sign(secret, content, manifests.FILE)
    with atomic_file(bundle / manifests.SIGNATURE) as temporary:
        temporary.write_text(signature, encoding="utf-8")
    return {
        "bundle": str(bundle),
        "bundle_id": found["bundle_id"],
        "signature": str(bundle / manifests.SIGNATURE),
        "public_key": secret.public.line,
    }
