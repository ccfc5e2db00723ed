"""The report on what methods learn: which rate is chosen, differences, and runs that are not done again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from research.learning import across, page
from research.learning import measure as learning
from research.support import tables
from research.support.arms import Arm
from tests.support.compiled import Compiler
from zoexport.core.errors import ConfigError
from zoexport.data.samples import Samples


def run(rate: float, seed: int, *losses: float | None, test: float = 0.5) -> dict[str, Any]:
    points = [
        {"steps": 10 * (number + 1), "loss": loss, "accuracy": 0.5}
        for number, loss in enumerate(losses)
    ]
    ended = losses[-1] is None
    tested = None if ended else {"loss": test, "accuracy": 0.6}
    return {"rate": rate, "seed": seed, "seconds_per_step": 0.1, "points": points, "test": tested}


def arm(label: str, *runs: dict[str, Any], rates: tuple[float, ...] = (1.0, 2.0)) -> dict[str, Any]:
    untrained = {"loss": 1.5, "accuracy": 0.5}
    settings = {"eps": "1"}
    return {
        "label": label, "method": "prge", "settings": settings, "rates": rates,
        "untrained": untrained, "planned": {"flops": 2e11, "bytes": 3e9}, "runs": [*runs],
    }  # fmt: skip


def test_the_rate_is_chosen_by_the_validation_over_all_seeds() -> None:
    one = arm(
        "A",
        run(1.0, 0, 0.9, 0.8, test=0.1),
        run(1.0, 1, 0.9, 0.6, test=0.1),
        run(2.0, 0, 0.9, 0.5),
        run(2.0, 1, 0.9, 0.7),
        run(4.0, 0, 0.1),  # the other seed is to come
        run(8.0, 0, 0.1, None),
        run(8.0, 1, 0.1, 0.1),
    )
    assert page.best_rate(one) == 2.0
    assert page.best_rate(arm("B", run(1.0, 0, None))) is None
    assert page.best_rate(arm("C")) is None


def test_the_page_says_what_is_between_arms(tmp_path: Path) -> None:
    first = arm("A", *(run(rate, seed, 2 / rate) for rate in (1.0, 2.0) for seed in (0, 1, 2)))
    tests = {0: 0.7, 1: 0.8, 2: 0.9}
    second = arm(
        "B",
        *(run(3.0, seed, 0.9, test=test) for seed, test in tests.items()),
        run(9.0, 0, 0.9, None),
        rates=(3.0, 9.0),
    )
    versions = {"zoexport": "0"}
    conditions = {
        "command": "python", "model": {"name": "tiny"}, "common": {}, "load_average": [0.1, 0.1],
        "comparison": {"task": "products", "validated": 20, "tested": 50}, "cpu": "one", "cores": 2, "system": "any",
        "versions": versions, "python": "3", "date": "today", "threads": 2,
    }  # fmt: skip
    result = {"arms": [first, second], "conditions": conditions}
    # 0.3 apart, with a deviation of 0.1 over three seeds: 0.1 / sqrt(3) * 4.303.
    assert page.differences(result) == [
        "- B less A, each at its best rate: +0.300 +- 0.248 (95 %, 3 seeds)"
    ]
    written = tmp_path / "page.md"
    mark = page.mark_of("any")
    written.write_text(f"before\n<!-- {mark} -->\n<!-- /{mark} -->\nafter\n")
    page.write(written, tmp_path, "any", result)
    text = written.read_text()
    assert "| A | **2** | 3 | 10 | 2 | 30 |" in text and "sentences of product reviews" in text
    assert "| A | 1 | 3 |" in text and "1 of 1 diverged" in text
    assert "the best rate of A is at an end" in text
    kept = tables.read(written.with_suffix(".csv"))[mark]
    assert ["B", "3", "0", "10", "0.1", "0.90000", "0.70000", "0.60000"] in kept[0]
    assert ["B", "9", "0", "20", "0.1", "-", "-", "-"] in kept[0]
    assert ["A", "**2**", "3", "10", "2", "30"] in [row[:6] for row in kept[1]]
    assert ["B less A, each at its best rate: +0.300 +- 0.248 (95 %, 3 seeds)"] in kept[2]
    assert json.loads((tmp_path / "any.json").read_text()) == json.loads(json.dumps(result))


def test_the_first_seed_chooses_the_rate_that_the_others_have() -> None:
    """And tries others beyond an end that is the best."""
    losses = {0.25: 0.7, 0.5: 0.5, 1.0: 0.6, 2.0: 0.8}
    comparison = learning.Comparison(arms=(), seeds=(0, 1), narrows=True)

    def tried(entry: dict[str, Any], seed: int, most: int) -> list[float]:
        found = []
        for rate in learning._rates(comparison, entry, seed):
            found.append(rate)
            if len(found) <= most:  # there is time for
                entry["runs"].append(run(rate, seed, losses[rate]))
                entry["rates"] = sorted({*entry["rates"], rate})
        return found

    entry = {**arm("A"), "rates": [1.0, 2.0]}
    assert tried(entry, 0, 9) == [1.0, 2.0, 0.5, 0.25] and entry["rates"] == [0.25, 0.5, 1.0, 2.0]
    assert tried(entry, 1, 9) == [0.5]
    stopped = {**arm("A"), "rates": [1.0, 2.0]}
    assert tried(stopped, 0, 2) == [1.0, 2.0, 0.5] and stopped["rates"] == [1.0, 2.0]
    assert tried({**arm("B"), "rates": [1.0, 2.0]}, 1, 9) == []
    plain = learning.Comparison(arms=())
    assert [*learning._rates(plain, {**arm("A"), "rates": [1.0, 2.0]}, 1)] == [1.0, 2.0]


def test_operations_until_a_loss() -> None:
    """0.2 TFLOP a step; from 0.8 to 0.4 in ten steps 0.6 lies halfway."""
    one = arm("A", run(1.0, 0, 0.8, 0.4), run(1.0, 1, 0.5), run(2.0, 0, 0.9, 0.7), rates=(1.0, 2.0))
    result = {"arms": [one], "conditions": {"comparison": {"target": 0.6}}}
    table = page.until_target(result)
    assert "TFLOP to 0.6" in table
    assert "| A | **1** | 2 | 2 | 2..3 | 12 |" in table
    assert "| A | 2 | 1 | not by all seeds |" in table


@pytest.mark.slow
def test_arms_of_two_results_are_compared_at_the_operations_of_the_shorter(tmp_path: Path) -> None:
    """2 TFLOP each 10 steps: the first has 6 of them, the second 3, where the first's best rate is another."""
    long = [run(rate, seed, *losses) for rate, losses in (
        (1.0, (1.0, 0.8, 0.2)),
        (2.0, (0.9, 0.5, 0.4)),
    ) for seed in (0, 1)]  # fmt: skip
    short = [run(5.0, 0, 0.9), run(5.0, 1, 0.8), run(7.0, 0, None), run(7.0, 1, 0.1)]
    quick = {**arm("B", *short), "planned": {"flops": 3e11, "bytes": 1}}
    files = []
    for name, one in (("long", arm("A", *long)), ("short", quick)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({"arms": [one]}))
    written = tmp_path / "page.md"
    written.write_text(f"<!-- {across.MARK} -->\n<!-- /{across.MARK} -->\n")
    assert across.main([str(written), str(files[0]), "A", str(files[1]), "B"]) == 0
    text = written.read_text()
    # Half way between 0.9 after 2 TFLOP and 0.5 after 4.
    assert (
        "validation loss after 3 TFLOP" in text and "| A | 2 | 2 | 0.700 | 0.700..0.700 |" in text
    )
    assert "| B | 5 | 2 | 0.850 | 0.800..0.900 |" in text
    # 0.2 and 0.1 apart: 0.0707 / sqrt(2) * 12.706.
    assert "- B less A: +0.150 +- 0.635 (95 %, 2 seeds)" in text


def test_a_loss_before_the_first_evaluation_is_not_known() -> None:
    one = run(1.0, 0, 0.9, 0.5)
    assert across.loss_after(arm("A", one), one, 1.0) is None
    assert across.loss_after(arm("A", one), one, 2.0) == 0.9
    assert across.loss_after(arm("A", one), one, 4.5) is None


def test_an_arm_that_was_evaluated_too_late_is_refused() -> None:
    late = {**arm("B", run(1.0, 0, 0.5)), "planned": {"flops": 9e11, "bytes": 1}}
    with pytest.raises(ConfigError, match="no loss after 4 TFLOP"):
        across.compared(arm("A", run(1.0, 0, 0.9, 0.5)), late)


def test_runs_of_an_earlier_result_are_not_done_again(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that has nothing of them but the figures."""
    rows = [
        {"prompt": f"The film was {word}. It was", "choices": [" great", " bad"], "label": label,
         "completion": [" great", " bad"][label]}
        for number in range(6)
        for label, word in enumerate((f"fine {number}", f"slow {number}"))
    ]  # fmt: skip
    data = Samples(tmp_path / "train.jsonl", tmp_path / "test.jsonl")
    for path in (data.train, data.test):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rates = (1e-3, 1e-2)
    comparison = learning.Comparison(
        arms=(Arm("A", "prge", {"weights": "fp32", "lora.r": "4"}, rates),),
        seeds=(0,),
        steps=4,
        every=2,
        validated=4,
        tested=6,
    )

    def measured(work: Path, known: dict[str, Any]) -> dict[str, Any]:
        work.mkdir()
        found: dict[str, Any] = {}
        learning.measure(
            comparison,
            str(compiler.model("llama")),
            data,
            mask=None,
            command="any",
            work=work,
            known=known,
            may_begin=lambda: True,
            write=found.update,
            progress=lambda *_: None,
        )
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    first = measured(tmp_path / "first", {})
    kept, other = first["arms"][0]["runs"]
    assert first["arms"][0]["planned"].keys() == {"flops", "bytes"}
    for each in (kept, other):
        assert [point["steps"] for point in each["points"]] == [2, 4]
        assert each["test"]["loss"] > 0

    def diverged(*_: Any, rate: float, **__: Any) -> dict[str, Any]:
        assert rate == other["rate"]
        return {"steps": 2, "loss": None, "accuracy": None, "seconds_per_step": None}

    # One is of another bundle.
    other["cell"] = "another"
    monkeypatch.setattr(learning, "trained", diverged)
    again = measured(tmp_path / "again", first)["arms"][0]["runs"]
    assert again[0] == kept and again[1]["test"] is None
