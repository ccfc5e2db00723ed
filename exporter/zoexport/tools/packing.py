"""A bundle as one file, for moving it: ``zoexport pack`` and ``unpack`` (docs/formats.md, "Packed bundle")."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from zoexport.core import manifest as manifests
from zoexport.core.files import atomic_file, refuse_existing
from zoexport.core.progress import Progress
from zoexport.core.trust import Trusted
from zoexport.session import Bundle, abi
from zoexport.session.host import manifest_text

SUFFIX = ".zobundle"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""The earliest that a ZIP archive can say: the same bundle gives the same bytes."""


def pack(bundle: Bundle, output: Path, *, force: bool, progress: Progress) -> dict[str, Any]:
    """Write a bundle, its signature among its files, into one file; every file is hashed as it is read.

    Args:
        output: the file, a ZIP archive of stored files.
        force: replace what is there.

    Returns:
        The keys of ``pack --json``.

    Raises:
        BundleError: the bundle is damaged, or no longer signed by one of its trusted keys.
        ConfigError: ``output`` exists or cannot be written.
    """
    content = manifest_text(bundle.path, bundle.trust)
    manifest = json.loads(content)
    refuse_existing(output, replace=force)
    files = sorted(manifest["files"])
    with atomic_file(output) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(_entry(manifests.FILE, len(content)), content)
        signature = bundle.path / manifests.SIGNATURE
        if signature.is_file():
            text = signature.read_bytes()
            archive.writestr(_entry(manifests.SIGNATURE, len(text)), text)
        for number, name in enumerate(files):
            progress("packing", number / len(files))
            with archive.open(_entry(name, manifest["files"][name]["bytes"]), "w") as copy:
                manifests.copy_file(bundle.path, manifest, name, copy)
    return {
        "bundle": str(bundle.path),
        "bundle_id": manifest["bundle_id"],
        "file": str(output),
        "bytes": output.stat().st_size,
        "signed": signature.is_file(),
    }


def _entry(name: str, size: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _FIRST_DAY)
    entry.external_attr = 0o644 << 16
    entry.file_size = size  # beyond 4 GiB the header needs other fields
    return entry


def unpack(
    file: Path,
    output: Path,
    *,
    force: bool,
    trust: Trusted = None,
    progress: Progress,
) -> dict[str, Any]:
    """Write the bundle in a file that :func:`pack` made, by the session, as the apps do.

    Args:
        file: the packed bundle.
        output: the bundle's folder, written whole or not at all.
        force: replace what is there.
        trust: as for :meth:`zoexport.session.Session.open`.

    Returns:
        The keys of ``unpack --json``.

    Raises:
        BundleError: the file is no packed bundle, is damaged, or is signed by none of the keys.
        ConfigError: ``output`` exists. StateError: there is too little room, or it cannot be written.
        Cancelled: Ctrl-C was pressed; nothing is left.
    """

    def told(done: int, total: int) -> None:
        progress("unpacking", done / max(total, 1))

    options = {"replace": force, "trusted_keys": abi.trusted_keys(trust)}
    with abi.stoppable() as callback:
        abi.call(
            *("zo_bundle_unpack", abi.path_bytes(file), abi.path_bytes(output)),
            *(abi.options(options), callback(abi.ON_PART, told), None),
        )
    return {
        "file": str(file),
        "bundle": str(output),
        "bundle_id": Bundle.open(output, trust=trust).id,
        "signed": (output / manifests.SIGNATURE).is_file(),
    }
