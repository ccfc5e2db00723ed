"""A build backend that builds nothing.

pip asks for a source archive's metadata before it gives the archive away, and would run the archive's own setup.py for
that. These are the metadata that lie in it.

In use with this folder's parent on PYTHONPATH, ``--no-build-isolation`` and ``PIP_USE_PEP517=1``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any


def prepare_metadata_for_build_wheel(metadata_directory: str, *_: Any) -> str:
    """PEP 517's hook; the working folder is that of the archive's files."""
    lines = Path("PKG-INFO").read_text("utf-8").splitlines()
    name, version = (
        next(line.partition(":")[2].strip() for line in lines if line.startswith(key))
        for key in ("Name:", "Version:")
    )
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    (Path(metadata_directory) / folder).mkdir()
    shutil.copy("PKG-INFO", Path(metadata_directory) / folder / "METADATA")
    return folder


def build_wheel(*_: Any) -> str:
    """PEP 517 requires it; nothing is built."""
    raise RuntimeError("a source archive that is only downloaded is not built")


class _Legacy:
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
    build_wheel = staticmethod(build_wheel)


__legacy__ = _Legacy()
