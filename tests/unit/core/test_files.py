"""Files and folders that are whole or absent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from zoexport.core.files import atomic_file, atomic_folder, write_json


@pytest.fixture(params=[0o022, 0o027, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_permissions_are_those_of_the_umask(umask: int, tmp_path: Path) -> None:
    """Also of files that a library wrote through a temporary one of its own."""
    write_json(tmp_path / "file.json", {})
    assert _mode(tmp_path / "file.json") == 0o666 & ~umask
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "inner").mkdir()
        save_file({"a": np.zeros(2)}, folder / "inner" / "a.safetensors")
        (folder / "program").touch(0o700)
    assert _mode(tmp_path / "folder") == 0o777 & ~umask
    assert _mode(tmp_path / "folder" / "inner") == 0o777 & ~umask
    assert _mode(tmp_path / "folder" / "inner" / "a.safetensors") == 0o666 & ~umask
    assert _mode(tmp_path / "folder" / "program") & 0o111 == 0o100
    with atomic_file(tmp_path / "key", mode=0o600) as file:
        file.write_text("secret")
    assert _mode(tmp_path / "key") == 0o600
    assert os.umask(umask) == umask
