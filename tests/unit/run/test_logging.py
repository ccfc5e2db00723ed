"""``train --report-to``: every step and evaluation once, whatever ends the run and wherever it goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.session.test_validation import Run
from zoexport.core.errors import Cancelled, ConfigError
from zoexport.run import logging as reports
from zoexport.session import Validation

EVALUATED = [0, 4, 8, 10]


@pytest.fixture(params=["prge", "mebp"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(tmp_path, request.param)


def train(run: Run, *report_to: str, steps: int = 10, stop_at: int | None = None) -> list[Any]:
    """A run that reports; what it told on the way."""
    told: list[Any] = []
    watched = reports.reports(report_to, run.folder / "run")
    with (
        run.open() as session,
        run.dataset(run.data) as data,
        run.dataset(run.held_out) as test,
    ):
        session.attach(run.folder / "run")
        watched.begin(session, {"num_queries": 4})

        def step(now: Any) -> bool:
            watched.step(now)
            told.append(now)
            return now.step == stop_at

        try:
            session.train(
                data, steps, step, validation=Validation(test, 4, on_evaluated=watched.evaluated)
            )
        except Cancelled:
            assert stop_at is not None
        finally:
            watched.close()
    return told


def rows(place: Path) -> list[dict[str, Any]]:
    found = reports.read(place)
    assert found is not None
    return found[1]


def steps_of(found: list[dict[str, Any]], kind: str) -> list[int]:
    return [row["step"] for row in found if row["kind"] == kind]


def check(run: Run, found: list[dict[str, Any]]) -> None:
    """Rows are all steps and evaluations of the run, each once, with what the state says of them."""
    assert steps_of(found, "step") == list(range(1, 11))
    assert steps_of(found, "evaluation") == EVALUATED
    evaluations = run.file("run")["evaluations"]
    for mine, row in zip(
        evaluations, (row for row in found if row["kind"] == "evaluation"), strict=True
    ):
        assert row["loss"] == pytest.approx(mine["loss"], rel=1e-6)
        assert row["token_accuracy"] == pytest.approx(mine["token_accuracy"], rel=1e-6)
        assert row["accuracy"] is None
    with run.open() as session:
        session.attach(run.folder / "run", read_only=True, last=True)
        for row in found:
            if row["kind"] == "step":
                record = session.record(row["step"] - 1)
                assert row["loss"] == pytest.approx(record.loss, rel=1e-6)
                assert row["learning_rate"] == pytest.approx(record.learning_rate, rel=1e-6)


def test_lines_have_the_run_and_what_was_told(run: Run) -> None:
    told = train(run, "jsonl")
    path = run.folder / "run.report.jsonl"
    head, found = reports.read(path) or ({}, [])
    check(run, found)
    assert head["method"] == run.method
    assert head["settings"]["num_queries"] == 4 and head["settings"]["batch_size"] == 2
    measured = [row for row in found if row["kind"] == "step"]
    assert [row["seconds"] for row in measured] == [round(now.seconds, 6) for now in told]
    assert all(row["anonymous_mb"] > 1 for row in measured)
    order = [(row["step"], row["kind"] == "evaluation") for row in found]
    assert order == sorted(order)


@pytest.mark.parametrize("stop_at", [1, 4, 7])
def test_a_run_that_goes_on_repeats_and_skips_nothing(run: Run, stop_at: int) -> None:
    path = run.folder / "run.report.jsonl"
    train(run, "jsonl", stop_at=stop_at)
    before = path.read_text()
    assert steps_of(rows(path), "step") == list(range(1, stop_at + 1))
    train(run, "jsonl")
    assert path.read_text().startswith(before)
    check(run, rows(path))
    whole = path.read_text()
    train(run, "jsonl")  # has all of its steps already
    assert path.read_text() == whole


def test_what_a_report_lacks_comes_from_the_state_and_what_the_state_lacks_goes(run: Run) -> None:
    path = run.folder / "run.report.jsonl"
    train(run, "jsonl", stop_at=6)
    # As a kill leaves it: two lines are missing, and of one a part is there.
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept[:-2]) + kept[-2][:9])
    train(run, "jsonl", steps=8)
    train(run, "jsonl")
    found = rows(path)
    check(run, found)
    unknown = [row["step"] for row in found if row["kind"] == "step" and row["seconds"] is None]
    assert unknown == [5, 6]
    # Steps that the state has not, and one with another loss.
    text = path.read_text().splitlines()
    for step in (11, 12):
        text.append(json.dumps({**found[-2], "kind": "step", "step": step, "learning_rate": 1.0}))
    other = json.loads(text[3])
    assert other["kind"] == "step"
    text[3] = json.dumps({**other, "loss": other["loss"] + 1})
    path.write_text("\n".join(text) + "\n")
    train(run, "jsonl")
    check(run, rows(path))


def test_what_is_no_report_of_this_run_stays_as_it_is(run: Run) -> None:
    path = run.folder / "mine.jsonl"
    head = {"kind": "run", "bundle_id": "0" * 64, "seed": 0}
    for text in ('{"text": "examples"}\n', json.dumps(head) + "\n", "[1]\n", "\xff", ""):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(ConfigError, match="a report of this bundle and seed") as error:
            train(run, f"jsonl:{path}")
        assert str(path) in str(error.value)
        assert path.read_text(encoding="latin-1") == text


def test_kinds_that_are_none_and_libraries_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="one of tensorboard, trackio, jsonl"):
        reports.reports(["csv"], tmp_path / "run")
    for kind in ("tensorboard", "trackio"):
        monkeypatch.setitem(sys.modules, kind, None)
        with pytest.raises(ConfigError, match=r"zoexport\[report\]"):
            reports.reports([kind], tmp_path / "run")


def test_reports_load_neither_torch_nor_numpy_unless_they_are_asked_for() -> None:
    code = (
        "import sys; from pathlib import Path; import zoexport.run.train\n"
        "zoexport.run.train.reports(['jsonl'], Path('run'))\n"
        "print([m for m in ('torch', 'numpy', 'tensorboard', 'trackio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensorboard_shows_every_step_once(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def shown() -> dict[str, list[tuple[int, float]]]:
        events = EventAccumulator(str(run.folder / "run.tensorboard"), size_guidance={"scalars": 0})
        events.Reload()
        return {
            tag: [(one.step, one.value) for one in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    train(run, "tensorboard", "jsonl", stop_at=6)
    train(run, "tensorboard", "jsonl")
    found = rows(run.folder / "run.report.jsonl")
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in found:
        group = "train" if row["kind"] == "step" else "held_out"
        for name, value in row.items():
            if name not in ("kind", "step") and value is not None:
                expected.setdefault(f"{group}/{name}", []).append((row["step"], value))
    assert shown().keys() == expected.keys()
    for tag, values in shown().items():
        assert [step for step, _ in values] == [step for step, _ in expected[tag]], tag
        assert [value for _, value in values] == pytest.approx(
            [value for _, value in expected[tag]], rel=1e-6
        )
    # A state of fewer steps, as after a lost power: what lies beyond them goes.
    shutil.rmtree(run.folder / "run")
    train(run, "tensorboard", steps=4, stop_at=3)
    assert [step for step, _ in shown()["train/loss"]] == [1, 2, 3]


@pytest.mark.slow
def test_trackio_has_every_step_once(tmp_path: Path) -> None:
    # In a process of its own: where trackio keeps its runs is read once, when it is imported.
    code = f"""
import os
os.environ["TRACKIO_DIR"] = {str(tmp_path / "trackio")!r}
from pathlib import Path
import trackio
from tests.unit.run.test_logging import Run, train
run = Run(Path({str(tmp_path / "made")!r}), "prge")
train(run, "trackio:mine", stop_at=6)
train(run, "trackio:mine")
(found,) = trackio.Api().runs("mine")
assert found.name == "run" and found.config["method"] == "prge"
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("mine", "run", run_id=found.id)
steps = [log["step"] for log in logs if "train/loss" in log]
assert steps == list(range(1, 11)), steps
print("as expected")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "as expected\n", done.stdout + done.stderr
