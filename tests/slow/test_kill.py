"""kill -9 at random moments of a run on the command line: the resumed run ends where the undisturbed one does."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.compiled import Compiler

pytestmark = pytest.mark.slow
# So many that no method can end between twenty kills 50 ms apart: a step would have to take 0.3 ms.
STEPS, KILLS = 3000, 20


def start(bundle: Path, data: Path, state: Path) -> subprocess.Popen[bytes]:
    """The whole run, from wherever the state is."""
    line = [sys.executable, "-m", "zoexport", "train", str(bundle), "--data", str(data)]
    line += ["--state", str(state), "--steps", str(STEPS), "--json"]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def log_size(state: Path) -> int:
    """Bytes of the trajectory log."""
    log = state / "trajectory.log"
    return log.stat().st_size if log.exists() else 0


def adapter_hash(bundle: Path, state: Path, output: Path) -> str:
    """The bytes of what is exported by default."""
    line = [sys.executable, "-m", "zoexport", "adapter", "export", str(bundle)]
    subprocess.run([*line, "--state", str(state), "-o", str(output)], check=True)
    (file,) = output.glob("*.safetensors")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("prge", {"num_queries": 8}),
        ("mebp", {}),
        ("senszoq", {"num_queries": 2}),
        ("quzo", {"num_queries": 2}),
    ],
)
def test_twenty_kills(tmp_path: Path, method: str, settings: dict[str, int]) -> None:
    compiler = Compiler()
    bundle = compiler.bundle("llama_tied", method, weights="int4", **settings)
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(json.dumps({"text": f"sentence {n} of many"}) + "\n" for n in range(50))
    )

    undisturbed = start(bundle, data, tmp_path / "whole")
    output, errors = undisturbed.communicate()
    assert undisturbed.returncode == 0, errors.decode()
    assert len(json.loads(output)["losses"]) == STEPS

    choose = random.Random(20)
    state = tmp_path / "killed"
    kills = 0
    for _ in range(4 * KILLS):
        run = start(bundle, data, state)
        # Wait until it has gone on from where the last one ended, then a random moment longer.
        before = log_size(state)
        while run.poll() is None and log_size(state) == before:
            time.sleep(0.005)
        time.sleep(choose.uniform(0, 0.05))
        run.send_signal(signal.SIGKILL)
        run.communicate()
        if run.returncode == -signal.SIGKILL:
            kills += 1
        if kills == KILLS or run.returncode == 0:
            break
    assert kills == KILLS, "the run ended before it was killed twenty times: raise STEPS"

    last = start(bundle, data, state)
    _, errors = last.communicate()
    assert last.returncode == 0, errors.decode()
    ours = adapter_hash(bundle, state, tmp_path / "a")
    assert ours == adapter_hash(bundle, tmp_path / "whole", tmp_path / "b")
    # A header, and 20 bytes a step and 4 a query.
    assert log_size(state) == 64 + (20 + 4 * settings.get("num_queries", 0)) * STEPS
    assert log_size(state) == log_size(tmp_path / "whole")
