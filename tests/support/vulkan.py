"""Vulkan without any device."""

from __future__ import annotations

import json
from pathlib import Path


def without_driver(folder: Path) -> dict[str, str]:
    """The environment in which Vulkan's loader finds a description of a driver in ``folder``, and no driver."""
    none = folder / "none.json"
    none.write_text(
        json.dumps({"file_format_version": "1.0.0", "ICD": {"library_path": "/none.so"}})
    )
    return {"VK_ICD_FILENAMES": str(none), "VK_DRIVER_FILES": str(none)}
