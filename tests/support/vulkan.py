"""Vulkan without any device, and with faults."""

from __future__ import annotations

import json
from pathlib import Path

from zoexport.core.native import native_folder


def without_driver(folder: Path) -> dict[str, str]:
    """The environment in which Vulkan's loader finds a description of a driver in ``folder``, and no driver."""
    none = folder / "none.json"
    none.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": "/none.so"}})
    )
    return {"VK_ICD_FILENAMES": str(none), "VK_DRIVER_FILES": str(none)}


def faults() -> Path:
    """The library that stands before Vulkan's and has a call fail (``tests/cpp/vulkan_faults.cpp``)."""
    return native_folder() / "tests" / "libzoexport_vulkan_faults.so"


def with_fault(call: str, number: int, result: str) -> dict[str, str]:
    """The environment in which a process's ``number``-th call of this name, from 1, gives ``result``."""
    return {
        "ZOEXPORT_VULKAN_LIBRARY": str(faults()),
        "ZOEXPORT_TEST_VULKAN_FAULT": f"{call}:{number}:{result}",
    }


def without_features() -> dict[str, str]:
    """The environment in which devices have what Vulkan 1.1 asks of each, and nothing beside."""
    return {"ZOEXPORT_VULKAN_LIBRARY": str(faults()), "ZOEXPORT_TEST_VULKAN_FEATURES": "none"}


def with_counts(file: Path) -> dict[str, str]:
    """The environment in which a process writes how often each call that can fail was made."""
    return {"ZOEXPORT_VULKAN_LIBRARY": str(faults()), "ZOEXPORT_TEST_VULKAN_CALLS": str(file)}


def read_counts(file: Path) -> dict[str, int]:
    """By call, of those that were made."""
    lines = (line.split() for line in file.read_text().splitlines())
    return {name: int(count) for name, count in lines if count != "0"}
