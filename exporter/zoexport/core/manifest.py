"""The manifest of a bundle (docs/formats.md, graphs/schema/manifest.schema.json).

The compiler writes it here; :class:`zoexport.session.Bundle` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from zoexport.core.errors import BundleError
from zoexport.core.files import hashed, open_within, sha256
from zoexport.core.resources import shared

FILE = "manifest.json"
INITIAL_STATE = "adapter.safetensors"
SIGNATURE = "manifest.json.minisig"
SCHEMA_VERSION = 1
_SCHEMA = "manifest.schema.json"


def bundle_id(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its ``bundle_id``: keys sorted, no spaces, UTF-8."""
    content = {key: value for key, value in manifest.items() if key != "bundle_id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, content: dict[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Complete a manifest with the size and hash of ``files`` and with its id, and write it."""
    manifest = {"schema_version": SCHEMA_VERSION, **content}
    manifest["files"] = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(files)
    }
    manifest["bundle_id"] = bundle_id(manifest)
    check_schema(manifest, folder / FILE)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    return manifest


def check_files(bundle: Path, manifest: Mapping[str, Any], *, hashes: bool) -> None:
    """Compare the files of a bundle with its manifest: their sizes, and their hashes if ``hashes``.

    Raises:
        BundleError: a file is missing or altered.
    """
    for name, expected in manifest["files"].items():
        with _opened(bundle, name, expected) as file:
            if hashes:
                _check_hash(bundle / name, hashed(file), expected)


def copy_file(bundle: Path, manifest: Mapping[str, Any], name: str, copy: IO[bytes]) -> None:
    """Copy a file of a bundle, hashed as it is read.

    Raises:
        BundleError: it is missing, altered, or not listed; what was copied of it is not the file then.
    """
    expected = manifest["files"].get(name)
    if expected is None:
        raise _altered(bundle / name, "no entry in the manifest's files", "one")
    with _opened(bundle, name, expected) as file:
        _check_hash(bundle / name, hashed(file, copy), expected)


@contextlib.contextmanager
def checked_file(bundle: Path, manifest: Mapping[str, Any], name: str) -> Iterator[Path]:
    """Yield a path to the very file that was hashed, even if its name is reused meanwhile.

    Raises:
        BundleError: it is missing or altered.
    """
    expected = manifest["files"][name]
    with _opened(bundle, name, expected) as file:
        _check_hash(bundle / name, hashed(file), expected)
        file.seek(0)
        yield Path(f"/dev/fd/{file.fileno()}")


@contextlib.contextmanager
def _opened(bundle: Path, name: str, expected: Mapping[str, Any]) -> Iterator[IO[bytes]]:
    """Open a file once, for all further reads, and check its size against the manifest."""
    path = bundle / name
    try:
        file = open_within(bundle, name)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        found = "no such file" if missing else error.strerror or str(error)
        raise _altered(path, found, f"{expected['bytes']} bytes") from error
    with file:
        size = os.fstat(file.fileno()).st_size
        if size != expected["bytes"]:
            raise _altered(path, f"{size} bytes", f"{expected['bytes']} bytes")
        yield file


def _check_hash(path: Path, digest: str, expected: Mapping[str, Any]) -> None:
    if digest != expected["sha256"]:
        raise _altered(path, f"SHA-256 {digest[:16]}...", f"{expected['sha256'][:16]}...")


def _altered(path: Path, found: str, expected: str) -> BundleError:
    return BundleError(
        str(path), found=found, expected=expected, fix="Copy the bundle again, or compile it again."
    )


def check_schema(manifest: Mapping[str, Any], path: Path) -> None:
    """Refuse a manifest at ``path`` that its schema does not allow.

    Raises:
        BundleError: the message names the place in the manifest.
    """
    import jsonschema

    validator = jsonschema.Draft202012Validator(json.loads(schema_path().read_text("utf-8")))
    problem = jsonschema.exceptions.best_match(validator.iter_errors(manifest))
    if problem is not None:
        place = "/".join(str(part) for part in problem.absolute_path) or "the top level"
        raise BundleError(
            str(path),
            found=f"at {place}: {problem.message[:200]}",
            expected="a manifest as its schema allows it",
            fix="Compile the bundle again.",
        )


def schema_path() -> Path:
    """Return the path of the schema of manifests."""
    return shared("schema") / _SCHEMA
