"""The report on federated algorithms: arms at equal operations, on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.federated import page as federated_page
from research.federated.measure import Arm, Scale, Study, measure
from tests.support.compiled import Compiler
from tests.support.federations import write_choices
from zoexport.data.samples import Samples


@pytest.mark.slow
def test_the_report_runs_arms_at_equal_operations(compiler: Compiler, tmp_path: Path) -> None:
    data = write_choices(tmp_path / "train.jsonl")
    settings = {"max_length": "24", "batch_size": "2", "loss": "choices", "weights": "fp32"}
    arms = (
        Arm("two", "mezo", {**settings, "num_queries": "1"}, "replay", (1e-3,)),
        Arm("forward", "mezo", {**settings, "num_queries": "1"}, "decomfl", (1e-3, 1e-2)),
    )
    scale = Scale(
        clients=4,
        sample=2,
        steps=2,
        rounds=3,
        seeds=(0, 1),
        validated=8,
        tested=20,
        split="labels:1",
        evaluated=2,
    )
    marks = []
    for _ in range(2):
        results: list[dict[str, Any]] = []
        measure(
            scale,
            Study(arms, "two"),
            str(compiler.model("llama")),
            Samples(data, data),
            command="test",
            work=tmp_path,
            may_begin=lambda: True,
            write=results.append,
            progress=lambda *_: None,
        )
        assert len(results) == 6
        runs = {arm["label"]: arm for arm in results[-1]["arms"]}
        budget = results[-1]["conditions"]["budget_flops"]
        assert set(runs) == {"two", "forward"}
        for arm in runs.values():
            count = 1 if arm["label"] == "two" else 2
            assert [run["seed"] for run in arm["runs"]] == [0] * count + [1] * count
            spent = arm["runs"][0]["points"][-1]["flops"]
            assert abs(spent - budget) <= arm["flops_of_round"] / 2
            last = arm["rounds"]
            evaluated = sorted({0, *range(2, last + 1, 2), last})
            done = [point["flops"] for point in arm["runs"][0]["points"]]
            assert done == [number * arm["flops_of_round"] for number in evaluated]
        assert list(tmp_path.glob("federation-*")) == []
        marks.append({path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()})
    assert marks[0] == marks[1], "a second call finds every run where the first left it"
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- report-federated-any -->\n<!-- /report-federated-any -->\nafter\n"
    )
    federated_page.write(page, tmp_path / "bench-federated", "any", results[-1])
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "| two " in text
    assert "report-federated-any,two" in page.with_suffix(".csv").read_text()


def run(rate: float, seed: int, *losses: float, diverged: str | None = None) -> dict[str, Any]:
    points = [
        {"rounds": n, "bytes_up": 100 * n, "flops": n * 1e12, "loss": loss, "accuracy": 0.5,
         "validation": loss + rate}
        for n, loss in enumerate(losses)
    ]  # fmt: skip
    return {
        "rate": rate, "seed": seed, "points": points, "upload_largest": 500, "diverged": diverged
    }  # fmt: skip


def test_operations_to_a_loss_are_between_points() -> None:
    assert federated_page.to_reach(run(1.0, 0, 1.0, 0.7, 0.5), 0.6) == pytest.approx(1.5e12)
    assert federated_page.to_reach(run(1.0, 0, 1.0, 0.7, 0.65), 0.6) is None


def test_the_rate_of_an_arm_is_the_validation_s() -> None:
    runs = [run(rate, seed, 1.0, 0.5 - rate / 4) for rate in (0.1, 0.2) for seed in (0, 1)]
    arm = {"label": "A", "rounds": 1, "runs": [*runs, run(0.01, 0, 1.0, diverged="why")]}
    assert federated_page.best_rate(arm) == 0.1
    table = federated_page.table({"arms": [arm], "conditions": {"scale": {"target": 0.6}}})
    assert "| A | **0.1** | 2 | 1 | 0.575 | 0.475 | 0.475..0.475 | 50.0% | 0.762 |" in table
    assert "1 of 1 stopped" in table
