"""The session's reader of a file beside Python's: what each says of it, or nothing where it takes it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import safetensors

from zoexport.core import manifest as manifests
from zoexport.core import outside, tensor_file
from zoexport.core.errors import ZoExportError
from zoexport.session import Dataset, Session, no_programs

KINDS = ("json", "manifest", "safetensors")
BUNDLE = Path(__file__).parent / "bundles" / "zeroth"
_ID = re.compile(rb'("bundle_id"\s*:\s*")[0-9a-f]{64}"')


def both(kind: str, content: bytes, folder: Path) -> tuple[str, str]:
    """What the session and Python say of a file of that kind; ``folder`` is for their files.

    Of manifests they must agree on JSON, id, names and sizes of files and values. What a step needs of programs and
    slots the session alone looks at; keys that it does not use, Python's schema alone.
    """
    readers: dict[str, Callable[[bytes, Path], tuple[str, str]]] = {
        "json": _json,
        "manifest": _manifest,
        "safetensors": _safetensors,
    }
    return readers[kind](content, folder)


def _json(content: bytes, folder: Path) -> tuple[str, str]:
    line = b'{"candidates": [{"tokens": [1], "labels": [1]}], "more": '
    line += content.replace(b"\n", b" ").replace(b"\r", b" ") + b"}"
    path = folder / "line.jsonl"
    path.write_bytes(line)
    of_session = ""
    with Dataset() as dataset:
        try:
            dataset.load(path)
        except ZoExportError as error:
            if (error.where, error.expected) == (f"{path}, line 1", "valid JSON"):
                of_session = str(error)
    return of_session, _said(lambda: outside.parse(line))


def _manifest(content: bytes, folder: Path) -> tuple[str, str]:
    bundle = _bundle(folder)
    try:
        found = outside.parse(content, keep_written=True)
    except outside.BadJsonError:
        found = None
    if isinstance(found, dict):
        # The id is made right, so that what it protects is reached.
        digest = manifests.bundle_id(found)
        content = _ID.sub(lambda match: match[1] + digest.encode() + b'"', content, count=1)
    (bundle / "manifest.json").write_bytes(content)
    of_session, of_python = _opened(bundle), _said(lambda: manifests.read(bundle))
    if of_python == "" and "expected valid JSON" not in of_session:
        of_session = ""  # what its programs need beyond the schema is the session's alone to say
    if of_session == "" and ": found at " in of_python:
        of_python = ""  # and what else the schema asks for, Python's
    return of_session, of_python


def _safetensors(content: bytes, folder: Path) -> tuple[str, str]:
    """Of a bundle's initial values: the container, whatever tensors are in it."""
    bundle = _bundle(folder)
    path = bundle / "adapter.safetensors"
    path.write_bytes(content)
    manifest = json.loads((BUNDLE / "manifest.json").read_bytes())
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"][path.name] = entry
    manifest["bundle_id"] = manifests.bundle_id(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    of_session = _opened(bundle)
    if re.search("found (no tensor|another dtype, shape or alignment of) ", of_session):
        of_session = ""
    return of_session, _said(lambda: _tensors(content))


def _tensors(content: bytes) -> None:
    """As adapters, masks and models are read."""
    tensor_file.check(content)
    safetensors.deserialize(content)


def _bundle(folder: Path) -> Path:
    bundle = folder / "bundle"
    if not bundle.exists():
        shutil.copytree(BUNDLE, bundle)
    for name in ("manifest.json", "adapter.safetensors"):
        shutil.copyfile(BUNDLE / name, bundle / name)
    return bundle


def _opened(bundle: Path) -> str:
    return _said(lambda: Session.open(bundle, engine=no_programs).close())


def _said(read: Callable[[], object]) -> str:
    try:
        read()
    except (ZoExportError, ValueError) as error:
        return str(error)
    return ""
