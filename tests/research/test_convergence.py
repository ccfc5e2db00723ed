"""The report on convergence: operations of a step, and runs of a tiny model that go on where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from research.convergence import measure as convergence
from research.convergence import page as convergence_page
from research.convergence.measure import Curve, flops_of_step
from research.support.products import Content, Product
from tests.support.compiled import Compiler
from tests.support.tiny_models import SENTENCES
from zoexport.data.samples import Samples, write

LINEAR = Product("linear_int4", 1, 256, 576, 1536, 32)
BACK = Product("linear_int4_input_gradient", 1, 256, 1536, 576, 32)


def test_flops_of_a_step() -> None:
    found = {"a": Content({LINEAR: 2}, 0), "b": Content({BACK: 1, LINEAR: 1}, 0)}
    assert flops_of_step({"a": 3, "b": 0.5}, found) == 7 * 2 * 256 * 576 * 1536


@pytest.mark.parity
@pytest.mark.slow
def test_convergence_goes_on_where_it_was_stopped(compiler: Compiler, tmp_path: Path) -> None:
    text = " ".join(SENTENCES)
    data = Samples(tmp_path / "train.jsonl", tmp_path / "test.jsonl")
    write(data.train, [{"text": text[start : start + 200]} for start in range(0, 200, 20)])
    write(data.test, [{"text": text[220:420]}])
    curves = (
        Curve("mebp", 20, 10, 1e-2),
        Curve("prge", 4, 2, 1e-3, num_queries=2),
        Curve("mezo", 4, 2, 1e-3),
    )
    said: list[str] = []

    def stop_at(count: int) -> Any:
        def progress(phase: str, done: float | None) -> None:
            said.append(phase)
            if len(said) == count:
                raise KeyboardInterrupt

        return progress

    def measure(progress: Any) -> dict[str, Any]:
        return convergence.measure(
            str(compiler.model("llama")),
            data,
            curves,
            max_length=32,
            threads=1,
            work=tmp_path / "work",
            progress=progress,
        )

    with pytest.raises(KeyboardInterrupt):
        measure(stop_at(4))  # a compilation, two points of the first curve
    assert len(said) == 4
    said.clear()
    result = measure(stop_at(0))
    assert [line for line in said if line.startswith("mebp: ")] == [said[0]]
    mebp, prge, mezo = result["curves"]
    assert [point["steps"] for point in mebp["points"]] == [0, 10, 20]
    assert mebp["points"][-1]["loss"] < mebp["points"][0]["loss"]
    # 2 q forward passes each; a gradient is one and a backward pass, which goes forward again.
    assert prge["gflop_per_step"] == pytest.approx(2 * mezo["gflop_per_step"], rel=0.02)
    assert 1 < mebp["gflop_per_step"] / mezo["gflop_per_step"] < 2.5
    for curve in result["curves"]:
        assert curve["points"][0]["seconds"] == 0 < curve["points"][-1]["seconds"]
        assert curve["points"][0]["loss"] == pytest.approx(mebp["points"][0]["loss"], rel=1e-4)
    assert measure(stop_at(0))["curves"] == result["curves"]

    page = tmp_path / "convergence.md"
    page.write_text("<!-- convergence -->\n<!-- /convergence -->\n")
    convergence_page.write(page, tmp_path, result)
    shown = page.read_text()
    assert f"| mebp | 20 | {mebp['points'][-1]['tflop']:.4g} |" in shown
    assert json.loads(page.with_suffix(".json").read_text()) == result
    assert "convergence,mebp,20," in page.with_suffix(".csv").read_text()
