"""The benchmark's baseline against the method's reference, and the verb on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.compiled import Compiler
from zoexport import models
from zoexport.cli.main import run
from zoexport.core import rng
from zoexport.core.config import parse
from zoexport.core.manifest import INITIAL_STATE
from zoexport.methods import methods
from zoexport.session import Bundle
from zoexport.tools.bench.eager import EagerZerothOrder
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.workload import examples

pytestmark = [pytest.mark.parity, pytest.mark.slow]
OPTIONS = ("--max-length", "24", "--set", "lora.r=4", "--rounds", "2", "--steps", "3", "--json")


@pytest.mark.parametrize("labels", ["all", "last"])
def test_the_baseline_takes_the_references_steps(compiler: Compiler, labels: str) -> None:
    bundle = compiler.bundle("llama_tied", num_queries=2)
    manifest = Bundle.open(bundle).manifest
    settings = manifest["settings"]
    initial = load_file(str(bundle / INITIAL_STATE))
    slots = {slot["name"]: initial[slot["name"]] for slot in manifest["state"]}
    model = models.load(models.resolve(str(compiler.model("llama_tied")))).model
    config: Any = parse(methods.get("prge").config, settings)
    reference = methods.get("prge").reference(model, config, slots)
    rate = 0.05

    def same_noise(step: int, query: int) -> Any:
        return lambda number, like: torch.from_numpy(
            rng.normals(config.seed, number, query, step, like.numel())
        ).view_as(like)

    baseline = EagerZerothOrder(
        model,
        slots,
        scaling=config.scaling,
        num_queries=config.num_queries,
        eps=config.eps,
        learning_rate=rate,
        noise=same_noise,
    )
    shape = Shape(
        settings["max_length"], settings["batch_size"], settings["num_queries"], labels=labels
    )
    batch = examples(shape, manifest["model"]["vocab_size"])
    rows = [example.candidates[0] for example in batch]
    tokens = torch.tensor([row.tokens for row in rows])
    chosen = torch.tensor([row.labels for row in rows])
    ours = [baseline.step(tokens, chosen) for _ in range(4)]
    baseline.close()
    theirs = [reference.step(batch, rate)["losses"] for _ in range(4)]
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.losses == pytest.approx(expected, rel=1e-4)
        assert set(mine.parts) == {"perturb", "forward", "update"}
    assert ours[0].losses != pytest.approx(ours[-1].losses, rel=1e-4), "it trains"


def bench(capfd: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code = run(["bench", *map(str, arguments)])
    out, err = capfd.readouterr()
    assert code == 0, err
    (line,) = out.splitlines()
    return dict(json.loads(line))


def test_the_verb(compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    work, folder = tmp_path / "work", tmp_path / "out"
    model = compiler.model("llama")
    grid = (
        "--num-queries",
        "1,2",
        "--rows",
        "2",
        "--weights",
        "fp32",
        "--labels",
        "last",
        "--eager",
    )
    common = (model, *OPTIONS, *grid, "--methods", "prge", "--work", work, "-o", folder)
    result = bench(capfd, *common)
    assert list(result) == ["results", "ratios", "conditions"]
    names = [
        (e["method"], e["num_queries"], e["batch_size"], e["max_length"]) for e in result["results"]
    ]
    assert names == [
        ("prge", 1, 2, 24),
        ("eager", 1, 2, 24),
        ("prge", 2, 1, 24),
        ("eager", 2, 1, 24),
    ]
    for entry in result["results"]:
        assert (
            0 < entry["step_seconds_least"] <= entry["step_seconds"] <= entry["step_seconds_most"]
        )
        assert len(entry["round_seconds"]) == 2 and entry["steps"] == 6
        assert sum(entry["share_by_part"].values()) == pytest.approx(1, abs=1e-3)
        assert 0 < entry["peak_anonymous_mb"] < entry["peak_rss_mb"]
    steps = [entry for entry in result["results"] if entry["method"] == "prge"]
    assert all(set(entry["share_by_part"]) == {"train", "session"} for entry in steps)
    assert all(entry["calls_by_part"] == {"train": 1} for entry in steps)
    assert all(entry["load_seconds"] > 0 and entry["peak_rss_mb"] < 100 for entry in steps)
    assert {ratio["kind"] for ratio in result["ratios"]} == {
        "faster than eager",
        "spread over queries",
    }
    assert {"cpu", "cores", "threads", "versions", "date", "model", "settings", "rounds"} <= set(
        result["conditions"]
    )
    assert {path.name for path in folder.iterdir()} == {"bench.json", "bench.md", "bench.png"}
    assert json.loads((folder / "bench.json").read_text()) == result
    assert list((work / "partial").iterdir()) == []

    # The bundles are kept, each with what compiling it took; measuring again replaces neither.
    bundles = sorted(path for path in (work / "bundles").iterdir() if path.is_dir())
    kept = {path.name: path.stat().st_mtime_ns for path in (work / "bundles").iterdir()}
    assert len(bundles) == 2
    assert set(kept) == {f"{path.name}{end}" for path in bundles for end in ("", ".compiling.json")}
    assert run(["bench", *map(str, common)]) == 2
    capfd.readouterr()
    bench(capfd, *common, "--force")
    assert {path.name: path.stat().st_mtime_ns for path in (work / "bundles").iterdir()} == kept

    # Existing bundles, and one of another model beside them.
    bundle = bundles[0]
    again = bench(capfd, bundle, "--labels", "all,last", "--rounds", "1", "--json", "--work", work)
    assert [entry["labels"] for entry in again["results"]] == ["all", "last"]
    assert again["ratios"] == []
    other = compiler.bundle("qwen2")
    assert run(["bench", str(bundle), str(other), "--json"]) == 2
    assert "found several models" in capfd.readouterr().out
