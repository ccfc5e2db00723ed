"""The manifest: what a bundle says of itself (docs/bundle.md, graphs/schema/manifest.schema.json)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from zoexport.core import minisign, outside, trust
from zoexport.core.errors import BundleError
from zoexport.core.files import hashed, open_within, sha256
from zoexport.core.resources import shared

FILE = "manifest.json"
SIGNATURE = "manifest.json.minisig"
SCHEMA_VERSION = 1
MOST_TENSOR = 1 << 40
"""Bytes of a program's value: more than any machine has room for."""
_SCHEMA = "manifest.schema.json"
_BYTES = {
    "int64": 8,
    "float32": 4,
    "uint32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "uint8": 1,
    "int8": 1,
}
_LONGEST_SIGNATURE = 1 << 16


def bundle_id(manifest: dict[str, Any]) -> str:
    """The SHA-256 of a manifest without its ``bundle_id``: keys sorted, no spaces, UTF-8, numbers as written."""
    content = {key: value for key, value in manifest.items() if key != "bundle_id"}
    return hashlib.sha256(outside.canonical(content).encode()).hexdigest()


def write(folder: Path, content: dict[str, Any], files: Iterable[Path]) -> dict[str, Any]:
    """Complete a manifest with the size and hash of ``files`` and with its id, and write it."""
    manifest = {"schema_version": SCHEMA_VERSION, **content}
    manifest["files"] = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(files)
    }
    manifest["bundle_id"] = bundle_id(manifest)
    _check_schema(manifest, folder / FILE)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    return manifest


def content(bundle: Path) -> bytes:
    """The bytes of a bundle's manifest, which a trusted key signed where that is required (:mod:`zoexport.core.trust`).

    Raises:
        BundleError: no bundle, or one that no trusted key signed; nothing of it was parsed.
    """
    if not (bundle / FILE).is_file():
        raise BundleError(
            f"bundle {bundle}",
            found="no manifest.json" if bundle.is_dir() else "no such folder",
            expected="a folder written by 'zoexport compile'",
            fix="Check the path, or compile the bundle.",
        )
    trusted = trust.trusted()
    path = bundle / FILE
    try:
        with open_within(bundle, FILE) as file:
            text = file.read()
    except OSError as error:
        raise _damaged(path, str(error.strerror or error)) from error
    if trusted:
        where = bundle / SIGNATURE
        try:
            with open_within(bundle, SIGNATURE) as file:
                signature = file.read(_LONGEST_SIGNATURE)
        except FileNotFoundError:
            raise minisign.unsigned(str(where)) from None
        except OSError as error:
            raise _damaged(where, str(error.strerror or error)) from error
        minisign.check(signature, text, trusted, str(where))
    return text


def read(bundle: Path, *, verify_files: bool = False) -> dict[str, Any]:
    """Read and check the manifest of a bundle.

    Args:
        bundle: the bundle's folder.
        verify_files: whether to hash every file too; sizes are always compared.

    Raises:
        BundleError: no bundle, one that no trusted key signed where that is required, a newer schema, a damaged
            manifest, a missing or altered file.
    """
    return parsed(bundle, content(bundle), verify_files=verify_files)


def parsed(bundle: Path, text: bytes, *, verify_files: bool = False) -> dict[str, Any]:
    """:func:`read`, of the manifest's bytes."""
    path = bundle / FILE
    try:
        manifest = outside.parse(text, keep_written=True)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise BundleError(
            f"{path}",
            found=f"schema version {version}",
            expected=f"at most {SCHEMA_VERSION}",
            fix="Update zoexport, or compile the bundle with this version.",
        )
    _check_schema(manifest, path)
    if manifest["bundle_id"] != bundle_id(manifest):
        raise _damaged(path, "content that does not match its bundle_id")
    _check_names(manifest, path)
    _check_sizes(manifest, path)
    _check_tokens(manifest, path)
    for name, expected in manifest["files"].items():
        with _opened(bundle, name, expected) as file:
            if verify_files:
                _check_hash(bundle / name, hashed(file), expected)
    return dict(manifest)


def _check_names(manifest: dict[str, Any], path: Path) -> None:
    """Refuse files that are read and not listed; the schema says which names may be listed."""
    named = [program["file"] for program in manifest["programs"]]
    if "weights" in manifest:
        named.append(manifest["weights"]["file"])
    for name in named:
        # A program may be a folder of files.
        if not any(listed == name or listed.startswith(f"{name}/") for listed in manifest["files"]):
            raise _damaged(path, f"the file {name!r}, which is not listed under files")


def _check_sizes(manifest: dict[str, Any], path: Path) -> None:
    for program in manifest["programs"]:
        for value in (*program["inputs"], *program["outputs"]):
            sizes = [size["max"] if isinstance(size, dict) else size for size in value["shape"]]
            taken = math.prod(sizes) * _BYTES[value["dtype"]]
            if taken > MOST_TENSOR:
                where = f"{value['name']} of program {program['name']}"
                raise _damaged(path, f"{where}, which takes {taken} bytes, more than {MOST_TENSOR}")


def _check_tokens(manifest: dict[str, Any], path: Path) -> None:
    text = manifest.get("text") or {}
    most = manifest["model"].get("vocab_size") or 1 << 31
    for name, entry in (("text", text), ("text.chat", text.get("chat") or {})):
        for token in (*entry.get("end_tokens", ()), entry.get("eos_token", 0)):
            if token >= most:
                raise _damaged(path, f"the token {token} in {name}, of a vocabulary of {most}")


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
    """A path under which the file that was hashed is read, whatever has its name by then.

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
    """A file of the size that the manifest says, of which everything else is asked by this one descriptor."""
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


def _damaged(path: Path, found: str) -> BundleError:
    return BundleError(
        str(path),
        found=found,
        expected="the manifest as 'zoexport compile' wrote it",
        fix="Copy the bundle again, or compile it again.",
    )


def _check_schema(manifest: object, path: Path) -> None:
    import jsonschema

    # 2.0 is no whole number, as for the session.
    draft = jsonschema.Draft202012Validator
    types = draft.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict = jsonschema.validators.extend(draft, type_checker=types)  # type: ignore[no-untyped-call]
    validator = strict(json.loads(schema_path().read_text("utf-8")))
    problem = jsonschema.exceptions.best_match(validator.iter_errors(manifest))
    if problem is not None:
        place = "/".join(str(part) for part in problem.absolute_path) or "the top level"
        raise _damaged(path, f"at {place}: {problem.message[:200]}")


def schema_path() -> Path:
    """The schema of manifests."""
    return shared("schema") / _SCHEMA
