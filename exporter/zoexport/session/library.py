"""Functions of the session's library that need no session."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any

from zoexport.core.manifest import FILE, check_files, check_schema
from zoexport.session import abi
from zoexport.session.types import Memory


def abi_version() -> int:
    """Return the version of the library's interface.

    Raises:
        ZoExportError: the library is missing, cannot be loaded, or is of another version.
    """
    return int(abi.library().zo_abi_version())


def memory_usage() -> Memory:
    """Return the memory of this process now, and its highest resident size so far."""
    return Memory(**abi.result("zo_memory_usage"))


def manifest_text(bundle: Path) -> bytes:
    """Return a bundle's ``manifest.json``, which the library has checked.

    Raises:
        BundleError: there is no bundle, none of the required keys signed it (:mod:`zoexport.core.trust`), or its
            manifest is damaged or of a newer schema.
    """
    options = {"trusted_keys": abi.key_lines(abi.keys_of(None))}
    return abi.result_text("zo_bundle_manifest", abi.path_bytes(bundle), abi.options(options))


def read_manifest(bundle: Path, *, verify_files: bool = False) -> dict[str, Any]:
    """Return a bundle's manifest, and check the bundle's files against it.

    Args:
        bundle: the bundle's folder.
        verify_files: whether to compare the hashes of the files too, and not their sizes alone.

    Raises:
        BundleError: as of :func:`manifest_text`, or a file is missing or altered.
    """
    manifest: dict[str, Any] = json.loads(manifest_text(bundle))
    # The library requires what it uses, the schema what hosts use.
    check_schema(manifest, bundle / FILE)
    check_files(bundle, manifest, hashes=verify_files)
    return manifest


def describe_state(state: Path) -> dict[str, Any]:
    """Describe a state folder, as docs/session.md lists it, without changing it.

    Raises:
        StateError: there is none, or it is damaged beyond its log.
    """
    found: dict[str, Any] = abi.result("zo_state_describe", abi.path_bytes(state))
    return found


def vulkan_devices() -> list[dict[str, str]]:
    """List the Vulkan devices: name, kind, version, and the reason if a device cannot run programs, or "".

    Raises:
        ZoExportError: there is no Vulkan, or the library was built without the engine.
    """
    found: list[dict[str, str]] = abi.result("zo_vulkan_devices")
    return found


def normals(seed: int, *, tensor_id: int, query: int, step: int, count: int) -> array.array[float]:
    """Return the first ``count`` normals of a perturbation, from the runtime's own generator (docs/rng.md)."""
    values = array.array("f", bytes(4 * count))
    abi.library().zo_rng_normals(seed, tensor_id, query, step, 0, count, abi.address(values))
    return values


def signs(seed: int, *, tensor_id: int, query: int, step: int, count: int) -> array.array[float]:
    """Return the first ``count`` Rademacher signs of a perturbation, 1 or -1."""
    values = array.array("f", bytes(4 * count))
    abi.library().zo_rng_signs(seed, tensor_id, query, step, 0, count, abi.address(values))
    return values
