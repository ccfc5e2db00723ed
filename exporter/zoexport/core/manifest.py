"""The manifest: what a bundle says of itself (docs/bundle.md, graphs/schema/manifest.schema.json)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoexport.core import outside
from zoexport.core.errors import BundleError
from zoexport.core.files import sha256

FILE = "manifest.json"
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


def read(bundle: Path, *, verify_files: bool = False) -> dict[str, Any]:
    """Read and check the manifest of a bundle.

    Args:
        bundle: the bundle's folder.
        verify_files: whether to hash every file too; sizes are always compared.

    Raises:
        BundleError: no bundle, a newer schema, a damaged manifest, a missing or altered file.
    """
    path = bundle / FILE
    if not path.is_file():
        raise BundleError(
            f"bundle {bundle}",
            found="no manifest.json" if bundle.is_dir() else "no such folder",
            expected="a folder written by 'zoexport compile'",
            fix="Check the path, or compile the bundle.",
        )
    try:
        manifest = outside.parse(path.read_bytes(), keep_written=True)
    except (OSError, ValueError) as error:
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
    for name, expected in manifest["files"].items():
        _check_file(bundle / name, expected, verify_files)
    return dict(manifest)


def _check_names(manifest: dict[str, Any], path: Path) -> None:
    """Refuse files that are read and not listed; the schema says which names may be listed."""
    named = [program["file"] for program in manifest["programs"]]
    if "weights" in manifest:
        named.append(manifest["weights"]["file"])
    for name in named:
        if name not in manifest["files"]:
            raise _damaged(path, f"the file {name!r}, which is not listed under files")


def _check_sizes(manifest: dict[str, Any], path: Path) -> None:
    for program in manifest["programs"]:
        for value in (*program["inputs"], *program["outputs"]):
            sizes = [size["max"] if isinstance(size, dict) else size for size in value["shape"]]
            taken = math.prod(sizes) * _BYTES[value["dtype"]]
            if taken > MOST_TENSOR:
                where = f"{value['name']} of program {program['name']}"
                raise _damaged(path, f"{where}, which takes {taken} bytes, more than {MOST_TENSOR}")


def _check_file(path: Path, expected: dict[str, Any], verify: bool) -> None:
    if not path.is_file():
        raise _altered(path, "no such file", f"{expected['bytes']} bytes")
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise _altered(path, f"{size} bytes", f"{expected['bytes']} bytes")
    if verify and (digest := sha256(path)) != expected["sha256"]:
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
    """The schema: packaged beside the code, or in ``graphs/`` of a source tree."""
    packaged = Path(__file__).parents[1] / "schema" / _SCHEMA
    return (
        packaged
        if packaged.is_file()
        else Path(__file__).parents[3] / "graphs" / "schema" / _SCHEMA
    )
