"""Training by masks for the report: what is run, kept and left out, with a stand-in for compiler and session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from research.masks import training as mask_training
from research.masks.training import Case, Plan, Trainings, best, cases, rate_of
from zoexport import train
from zoexport.core.errors import DivergedError


def quiet(phase: str, done: float | None) -> None:
    pass


def test_rates_and_order() -> None:
    assert rate_of(5e-5, 0.7) == 7e-5
    assert rate_of(1.5e-4, 0.0009) == 0.2
    found = list(cases(Plan(densities=(1e-3, 1e-2))))
    assert found[0] == Case("corpus", 1e-3)
    assert [case.density for case in found] == [1e-3] * 8 + [1e-2] * 6
    assert [case.mask for case in found if case.dynamic] == ["task", "random"]
    runs: list[dict[str, Any]] = [
        {"rate": 1, "accuracy": 0.5, "loss": 0.7},
        {"rate": 2, "accuracy": 0.6, "loss": 0.9},
        {"rate": 3, "accuracy": 0.6, "loss": 0.8},
        {"rate": 4, "accuracy": None, "loss": None},
    ]
    assert best(runs)["rate"] == 3
    assert best(runs[3:])["rate"] == 4


class Fake:
    """Stands for compiler and session; remembers what was asked of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.diverges: set[str] = set()
        monkeypatch.setattr(mask_training, "compile_apart", self.compile)
        monkeypatch.setattr(mask_training, "export_adapter", self.export)
        monkeypatch.setattr(mask_training.Trainings, "_choose", self.choose)
        monkeypatch.setattr(train, "train", self.train)
        monkeypatch.setattr(train, "evaluate", self.evaluate)

    def compile(
        self, bundle: Path, model: str, method: str, target: str, settings: dict[str, str]
    ) -> None:
        self.said.append(("compile", Path(model).name, Path(settings["mask"]).name))

    def choose(self, model: str, case: Case, seed: int, path: Path) -> None:
        self.said.append(("choose", Path(model).name, seed))

    def export(self, bundle: Path, **named: Any) -> None:
        self.said.append(("export", named["kind"]))

    def train(self, bundle: Path, **named: Any) -> dict[str, Any]:
        rate = named["settings"]["lr"]
        self.said.append(("train", rate, named["steps"], named["settings"]["seed"]))
        if rate in self.diverges:
            raise DivergedError("a run", found="nan", expected="numbers", fix="")
        return {"step_seconds_median": 0.5}

    def evaluate(self, bundle: Path, **named: Any) -> dict[str, Any]:
        self.said.append(("evaluate", named["state"] is not None))
        return {"loss": 0.5, "accuracy": 0.75}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(monkeypatch)


def trainings(folder: Path) -> Trainings:
    data = folder / "data.jsonl"
    data.write_text("1\n2\n3\n", encoding="utf-8")

    def mask_file(mask: str, density: float) -> Path:
        path = folder / f"{mask}-{density:g}.mask"
        path.write_text(path.name, encoding="utf-8")
        return path

    return Trainings(
        "model",
        "sha",
        data,
        data,
        Plan(steps=10, phases=3, evaluated=2, promises=(0.1, 0.2)),
        mask_file=mask_file,
        share=lambda mask, density: 0.5,
        work=folder / "work",
        progress=quiet,
    )


def test_static_runs_are_kept(fake: Fake, tmp_path: Path) -> None:
    case = Case("corpus", 1e-3)
    answers = iter([True, False])
    found = trainings(tmp_path).run(case, may_begin=lambda: next(answers))
    assert found is not None and [run["rate"] for run in found["runs"]] == [0.2]
    assert fake.said == [
        ("compile", "model", "corpus-0.001.mask"),
        ("evaluate", False),
        ("train", "0.2", 10, "0"),
        ("evaluate", True),
    ]
    assert (tmp_path / "work" / "held-out-2.jsonl").read_text() == "1\n2\n"
    fake.said.clear()
    fake.diverges = {"0.4"}
    found = trainings(tmp_path).run(case, may_begin=lambda: True)
    assert found is not None
    assert found["untrained"] == {"loss": 0.5, "accuracy": 0.75}
    assert [run["accuracy"] for run in found["runs"]] == [0.75, None]
    assert [said[0] for said in fake.said] == ["compile", "train"]
    fake.said.clear()
    assert trainings(tmp_path).run(case, may_begin=lambda: False) == found
    assert fake.said == []
    assert trainings(tmp_path).run(Case("task", 1e-3), may_begin=lambda: False) is None


def test_a_dynamic_mask_is_chosen_of_the_trained_model(fake: Fake, tmp_path: Path) -> None:
    dynamic = Case("task", 1e-3, dynamic=True)
    # It takes the better rate of the static mask, which has not been run yet.
    assert trainings(tmp_path).run(dynamic, may_begin=lambda: True) is None
    trainings(tmp_path).run(Case("task", 1e-3), may_begin=lambda: True)
    fake.said.clear()
    found = trainings(tmp_path).run(dynamic, may_begin=lambda: True)
    assert found is not None and found["dynamic"]
    (run,) = found["runs"]
    assert (run["steps"], run["phases"], run["rate"]) == (10, 3, 0.2)
    assert [said for said in fake.said if said[0] != "evaluate"] == [
        ("compile", "model", "task-0.001.mask"),
        ("train", "0.2", 3, "0"),
        ("export", "hf"),
        ("choose", "merged", 1),
        ("compile", "merged", "chosen.mask"),
        ("train", "0.2", 3, "1"),
        ("export", "hf"),
        ("choose", "merged", 2),
        ("compile", "merged", "chosen.mask"),
        ("train", "0.2", 4, "2"),
    ]
