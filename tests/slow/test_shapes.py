"""Published configurations with random weights: benched, and a step of backpropagation against autograd in float64."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.compiler.build import compile_bundle
from zoexport.models import shapes

pytestmark = pytest.mark.slow
CUT = {
    "num_hidden_layers": 2,
    "vocab_size": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two gigabytes at most, which are not kept."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZOEXPORT_CACHE", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_a_step_of_qwen_s_shape(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = "--methods mebp --weights int4 --max-length 64 --labels last --no-eager --threads 2"
    measured = "--rounds 1 --warmup 1 --steps 1"
    call = ["bench", "--shape", "qwen2.5-0.5b", *options.split(), *measured.split(), "--json"]
    code = run(call)
    out, err = capfd.readouterr()
    assert code == 0, err
    found = json.loads(out)
    (entry,) = found["results"]
    assert entry["calls_by_part"] == {
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


def _gradient_error(model: str, folder: Path) -> float:
    """Of one step of mebp over int4 weights, every linear layer adapted; it passes."""
    compile_bundle(
        model,
        method="mebp",
        target="host",
        output=folder / "bundle",
        settings={"lora.target_modules": "all-linear", "lora.r": "8", "generate": False},
        recipe=None,
        force=False,
        progress=lambda *_: None,
    )
    report = Bundle.open(folder / "bundle").parity(steps=1).as_dict()
    assert report["passed"] is True, report
    return float(report["max_relative_gradient_error"])


def test_gradients_of_a_whole_shape(cache: Path, tmp_path: Path) -> None:
    """All 24 layers: 2.0e-6 was measured."""
    assert _gradient_error("shape:qwen2.5-0.5b", tmp_path) <= 1e-5


@pytest.mark.parametrize("name", ["qwen2.5-1.5b", "qwen2.5-3b", "gemma3-1b", "gemma3-4b"])
def test_gradients_of_two_layers_of_a_shape(name: str, tmp_path: Path) -> None:
    """At its widths, over fewer tokens."""
    config: dict[str, Any] = json.loads((shapes.known()[name] / "config.json").read_text("utf-8"))
    config.get("text_config", config).update(CUT)
    if "image_token_index" in config:
        config["image_token_index"] = 3  # tokens past the vocabulary are replaced in place
    for folder in ("config", "model"):
        (tmp_path / folder).mkdir()
    (tmp_path / "config" / "config.json").write_text(json.dumps(config), "utf-8")
    shapes.write_random(tmp_path / "config", tmp_path / "model")
    try:
        assert _gradient_error(str(tmp_path / "model"), tmp_path) <= 1e-5
    finally:
        shutil.rmtree(tmp_path / "model")
