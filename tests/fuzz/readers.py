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

KINDS = ("json", "safetensors")
BUNDLE = Path(__file__).parent / "bundles" / "zeroth"


def both(kind: str, content: bytes, folder: Path) -> tuple[str, str]:
    """What the session and Python say of a file of that kind; ``folder`` is for their files."""
    readers: dict[str, Callable[[bytes, Path], tuple[str, str]]] = {
        "json": _json,
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
