"""A published configuration of half a billion parameters, benched with random weights of its shape."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from zoexport.cli.main import run

pytestmark = pytest.mark.slow


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two gigabytes at most, which are not kept."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZOEXPORT_CACHE", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_a_step_of_qwen_s_shape(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = "--methods mebp --weights int4 --seq-len 64 --labels last --no-eager --threads 2"
    measured = "--rounds 1 --warmup 1 --steps 1"
    call = ["bench", "--shape", "qwen2.5-0.5b", *options.split(), *measured.split(), "--json"]
    code = run(call)
    out, err = capfd.readouterr()
    assert code == 0, err
    found = json.loads(out)
    (entry,) = found["results"]
    calls = {program["name"]: program["calls"] for program in entry["programs"]}
    assert calls == {
        "embedding@64": 1,
        "layer.0.saving@64": 24,
        "layer.0.backward.from_saved@64": 24,
        "head.backward": 1,
    }
    assert 0 < entry["step_seconds"] < 60
    # 494 million weights at 4.5 bits are 278 MB, which are mapped.
    assert 270e6 < entry["bundle_bytes"] < 300e6
    took = entry["compiling"]
    assert took["seconds"] > 0 and took["processor_seconds"] > 1 and took["peak_anonymous_mb"] > 100
    assert entry["peak_anonymous_mb"] < 100
    conditions = found["conditions"]
    assert conditions["random_weights"] == "qwen2.5-0.5b"
    assert conditions["model"]["source"] == "shape:qwen2.5-0.5b"
    assert conditions["model"]["parameters"] == 494_032_768

    # What it compiled says the same, measured as a bundle.
    bundle = cache / "bench" / "bundles" / entry["bundle"]
    assert run(["bench", str(bundle), "--labels", "last", *measured.split(), "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert again["conditions"]["random_weights"] == "qwen2.5-0.5b"
