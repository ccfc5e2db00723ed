"""The first-order baseline against the reference, and the benchmark of a split tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.parity.test_bench import bench
from tests.support.compiled import Compiler
from zoexport import models
from zoexport.core.config import parse
from zoexport.core.manifest import INITIAL_STATE
from zoexport.methods import methods
from zoexport.session import Bundle
from zoexport.tools.bench.autograd import EagerFirstOrder
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.workload import examples

pytestmark = [pytest.mark.parity, pytest.mark.slow]


def test_the_baseline_takes_the_references_steps(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", method="mebp", weight_decay=0.1, max_grad_norm=0.5)
    manifest = Bundle.open(bundle).manifest
    settings = manifest["settings"]
    slots = load_file(str(bundle / INITIAL_STATE))
    model = models.load(models.resolve(str(compiler.model("llama")))).model
    config: Any = parse(methods.get("mebp").config, settings)
    rate = 0.01
    baseline = EagerFirstOrder(
        model,
        slots,
        scaling=config.scaling,
        learning_rate=rate,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    batch = examples(Shape(settings["max_length"], settings["batch_size"], 1), 320)
    rows = [example.candidates[0] for example in batch]
    tokens = torch.tensor([row.tokens for row in rows])
    labels = torch.tensor([row.labels for row in rows])
    timed = [baseline.step(tokens, labels) for _ in range(4)]
    baseline.close()
    reference = methods.get("mebp").reference(model, config, slots)
    expected = [reference.step(batch, rate)["losses"] for _ in range(4)]
    assert [step.losses[0] for step in timed] == pytest.approx(
        [one for (one,) in expected], rel=1e-5
    )
    assert timed[0].losses != pytest.approx(timed[-1].losses, rel=1e-3), "it trains"
    assert set(timed[0].parts) == {"forward", "backward", "update"}
    for name, value in reference.values().items():
        # AdamW divides by a gradient's size: where that is near nothing its rounding decides.
        off = (baseline.slots[name].detach() - value).norm() / value.norm()
        assert float(off) < 1e-3, name


def test_the_mebp_grid(
    compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--grid", "mebp", "--set", "lora.r=4", "--rounds", "1", "--steps", "3", "--json")
    folder = tmp_path / "out"
    result = bench(
        capfd, compiler.model("llama"), *options, "--work", tmp_path / "work", "-o", folder
    )
    # A model of 128 positions.
    names = [(entry["method"], entry["max_length"]) for entry in result["results"]]
    assert names == [("mebp", 128), ("mebp", 128), ("mezo", 128), ("autograd", 128)]
    mebp, kept, mezo, autograd = result["results"]
    assert [entry["activation_cache_mb"] for entry in result["results"]] == [0, 2000, None, None]
    calls = mebp["calls_by_part"]
    # Two layers; the head takes 128 labels, or 127, in chunks.
    assert (calls["embedding@128"], calls["layer.0@128"]) == (1, 2)
    assert calls["layer.0.backward@128"] == 2
    calls = kept["calls_by_part"]
    assert calls["layer.0.saving@128"] == calls["layer.0.backward.from_saved@128"] == 2
    assert not calls.get("layer.0@128") and not calls.get("layer.0.backward@128")
    assert mezo["calls_by_part"]["layer.0@128"] == 4
    for entry in (mebp, kept, mezo):
        assert set(entry["seconds_by_part"]) == {*entry["calls_by_part"], "session"}
    assert set(autograd["share_by_part"]) == {"forward", "backward", "update"}
    assert {ratio["kind"] for ratio in result["ratios"]} == {
        f"{kind} over {other}"
        for kind in ("step", "anonymous MB", "peak MB")
        for other in ("mezo", "autograd")
    }
    assert {path.name for path in folder.iterdir()} == {"bench.json", "bench.md", "bench.png"}
