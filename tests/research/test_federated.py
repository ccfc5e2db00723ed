"""The report on federated algorithms: arms at equal operations, on a tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.federated import page as federated_page
from research.federated.measure import Arm, Scale, measure
from tests.support.compiled import Compiler
from tests.support.federations import write_choices
from zoexport.data.samples import Samples


@pytest.mark.slow
def test_the_report_runs_arms_at_equal_operations(compiler: Compiler, tmp_path: Path) -> None:
    data = write_choices(tmp_path / "train.jsonl")
    settings = {"seq_len": "24", "batch": "2", "loss": "choices", "weights": "fp32"}
    arms = [
        Arm("two", "mezo", {**settings, "queries": "1"}, "replay", (1e-3,)),
        Arm("forward", "mezo", {**settings, "queries": "1"}, "decomfl", (1e-3,)),
        Arm("of a later release", "no_such_method", {}, "replay", (1e-3,)),
    ]
    scale = Scale(
        clients=4,
        sample=2,
        steps=2,
        rounds=3,
        measure="two",
        seeds=(0, 1),
        tested=20,
        evaluated=2,
    )
    marks = []
    for _ in range(2):
        results: list[dict[str, Any]] = []
        measure(
            scale,
            arms,
            str(compiler.model("llama")),
            Samples(data, data),
            command="test",
            work=tmp_path,
            write=results.append,
            progress=lambda *_: None,
        )
        assert len(results) == 4
        runs = {arm["label"]: arm for arm in results[-1]["arms"]}
        budget = results[-1]["conditions"]["budget_flops"]
        assert set(runs) == {"two", "forward"}
        for arm in runs.values():
            assert [run["seed"] for run in arm["runs"]] == [0, 1]
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
    page.write_text("before\n<!-- report-federated -->\n<!-- /report-federated -->\nafter\n")
    federated_page.write(page, tmp_path / "bench-federated", results[-1])
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "| two " in text
    assert (tmp_path / "bench-federated" / "loss.png").stat().st_size > 1000
