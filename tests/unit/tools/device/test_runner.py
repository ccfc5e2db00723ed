"""Where ``device runner`` looks for the program, and what it says if that is not built."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoexport.core.errors import DeviceError
from zoexport.tools.device import runner


def test_the_build_of_the_checkout_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "checkout"
    monkeypatch.setattr(runner, "checkout", lambda: root)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeviceError) as caught:
        runner.make_runner(tmp_path / "out", force=False)
    assert caught.value.where == str(root / "build/aarch64/native/runtime_ops")
    assert caught.value.fix == f"Run 'make device-runner' in {root}, or pass build=."

    program = root / runner.BUILD / runner.RUNNER
    program.parent.mkdir(parents=True)
    program.write_text("text")
    with pytest.raises(DeviceError, match="readelf"):
        runner.make_runner(tmp_path / "out", force=False)


def test_an_installed_package_names_the_build_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "checkout", lambda: None)
    with pytest.raises(DeviceError, match=r"'make device-runner' in a checkout.*build=.CHECKOUT"):
        runner.make_runner(tmp_path / "out", force=False)
    assert not (tmp_path / "out").exists()
