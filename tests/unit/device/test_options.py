"""What a run on a phone may change: every setting of a method has its option of the runner."""

from __future__ import annotations

import subprocess

from zoexport.core.config import fields
from zoexport.core.native import runner_path
from zoexport.device.runs import OPTIONS
from zoexport.methods import methods


def test_every_setting_of_a_run_has_an_option() -> None:
    wanted = {
        key
        for name in methods.names()
        for key, (_, info) in fields(methods.get(name).config).items()
        if info.runtime
    }
    assert wanted - set(OPTIONS) == set()


def test_the_runner_takes_them() -> None:
    said = subprocess.run([runner_path(), "--help"], capture_output=True, text=True, check=False)
    assert [option for option in OPTIONS.values() if f"{option} " not in said.stdout] == []
