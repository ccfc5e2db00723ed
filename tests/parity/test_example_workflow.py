"""examples/ci/phone-parity.yml, run step by step with a phone that is a folder and runs QNN's emulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.hosts import ROOT
from tests.support.phones import SERIAL, install_phones
from tests.support.qnn import needs_qnn, variables
from tests.support.tiny_models import save_tiny
from zoexport.core.native import native_folder

pytestmark = [pytest.mark.parity, pytest.mark.slow, needs_qnn]


def test_the_workflow_compiles_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "phone-parity.yml").read_text())
    phones = install_phones(tmp_path, monkeypatch)
    (phones / SERIAL / "environment.json").write_text(json.dumps(variables()))
    model = save_tiny("llama_tied", tmp_path / "model")
    given = {
        **workflow["env"],
        "MODEL": str(model),
        "SETTINGS": workflow["env"]["SETTINGS"].replace("max_length=64", "max_length=12"),
        "RUNNER": str(native_folder()),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    ran = []
    for name in ("emulate", "phone"):
        for step in workflow["jobs"][name]["steps"]:
            if "run" not in step or step["name"] == "Install":
                continue
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                cwd=tmp_path,
                env={**os.environ, **given},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, (step["name"], done.stderr[-2000:])
            ran.append(step["name"])
    assert len(ran) == 4
    emulation, report = (
        json.loads((tmp_path / f"{name}.json").read_text().splitlines()[-1])
        for name in ("emulation", "report")
    )
    assert emulation["passed"] and report["passed"] and report["same_bits"]
    assert report["steps"] == 5 and report["signs"]["of"] == 10
