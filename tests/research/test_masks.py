"""The report on masks: its sums against a plain sort, its cells, its page of made-up figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from research.masks import coverage as sums
from research.masks import gradients as mask_gradients
from research.masks import measure as masks
from research.masks import page as masks_page
from research.masks.gradients import MASKS, TEXTS, TIMES, Gradients, Sizes
from tests.support.tiny_models import SENTENCES, save_tiny
from zoexport import models
from zoexport.core.mask import read_mask
from zoexport.tools import mask_choice as choose
from zoexport.tools.mask_choice import MaskConfig, coverage
from zoexport.tools.sensitivity import averaged_squares, choose_mask

SHAPES = {"a": (3, 5), "b": (4, 4), "c": (2, 7)}


def quiet(phase: str, done: float | None) -> None:
    pass


def made_up(seed: int) -> dict[str, torch.Tensor]:
    """Squares with ties, by weight."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 20, shape, generator=generator).float() ** 2
        for name, shape in SHAPES.items()
    }


def flat(squares: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([square.flatten() for square in squares.values()])


def test_a_rankings_beginnings_are_the_masks_of_smaller_densities() -> None:
    squares = made_up(0)
    score = choose.squares_score(squares)
    ranked = sums.ranking(SHAPES, score, 30)
    values = flat(squares)
    expected = sorted(range(values.numel()), key=lambda place: (-values[place], place))[:30]
    assert ranked.tolist() == expected
    for count in (1, 7, 30):
        found = sums.by_weight(SHAPES, ranked[:count])
        for name, places in choose.top(SHAPES, score, count).items():
            assert found[name].tolist() == places.tolist()


def test_a_random_ranking_is_of_the_random_mask() -> None:
    score = choose.random_score(SHAPES, 3)
    found = sums.by_weight(SHAPES, sums.ranking(SHAPES, score, 20)[:9])
    for name, places in choose.top(SHAPES, score, 9).items():
        assert found[name].tolist() == places.tolist()


def test_counts_are_those_of_masks() -> None:
    assert sums.counts(SHAPES, [1e-4, 0.1, 1]) == [1, 4, 45]
    ((_, count),) = choose.counts(SHAPES, 0.1, "model")
    assert count == 4


def test_covered_shares() -> None:
    values = torch.tensor([1.0, 5.0, 0.0, 2.0])
    assert sums.covered(values, torch.tensor([1, 3, 0]), [1, 2, 3]) == [0.625, 0.875, 1.0]


def test_overlap_of_rankings() -> None:
    first, second = torch.tensor([0, 1, 2, 3]), torch.tensor([4, 1, 3, 0])
    assert sums.overlap(first, second, [1, 2, 4], 5) == [0.0, 0.5, 0.75]
    assert sums.overlap(first, first, [1, 4], 5) == [1.0, 1.0]


def test_curve_of_layers() -> None:
    squares = {"a": torch.tensor([[1.0, 6.0], [3.0, 0.0]]), "b": torch.tensor([[4.0, 4.0]])}
    found = sums.curve(squares, [0.01, 0.5, 1.0])
    # a: 6, 9, 10 of 10; b: 4, 8 of 8.
    assert found["mean"] == pytest.approx([(0.6 + 0.5) / 2, (0.9 + 0.5) / 2, 1.0])
    assert found["std"] == pytest.approx([0.05, 0.2, 0.0])
    zero = {**squares, "c": torch.zeros(2, 2)}
    assert sums.curve(zero, [0.5]) == sums.curve(squares, [0.5])


def test_vectors_come_back_from_their_files(tmp_path: Path) -> None:
    squares = made_up(1)
    sums.save(tmp_path / "squares", list(squares.values()))
    vector = sums.mapped(tmp_path / "squares", torch.float32)
    assert torch.equal(vector, flat(squares))
    for name, matrix in sums.views(SHAPES, vector).items():
        assert torch.equal(matrix, squares[name])
    sums.save(tmp_path / "places", [torch.tensor([3, 1 << 40])])
    assert sums.mapped(tmp_path / "places", torch.int64).tolist() == [3, 1 << 40]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("tiny")
    kinds = [" great", " terrible"] * 4
    task = [
        {"prompt": f"{text} It was", "completion": kind, "choices": kinds[:2]}
        for text, kind in zip(SENTENCES, kinds, strict=True)
    ]
    rows: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"text": text} for text in SENTENCES[:4]],
        "held-out text": [{"text": text} for text in SENTENCES[4:]],
        "task": task[:4],
        "held-out task": task[4:],
    }
    texts = {name: folder / f"{name}.jsonl" for name in TEXTS}
    for name, path in texts.items():
        path.write_text("".join(json.dumps(row) + "\n" for row in rows[name]), encoding="utf-8")
    return save_tiny("llama_tied", folder / "model"), texts


SIZES = Sizes(
    sequences=3,
    task_sequences=4,
    grasp_sequences=2,
    max_length=48,
    tuning_steps=4,
    tuning_batch=2,
    tuning_rate=1e-2,
    densities=(1e-3, 1e-2, 1e-1),
)


def test_gradients_of_a_tiny_model(
    tiny: tuple[Path, dict[str, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = tiny
    gradients = Gradients(str(model), texts, SIZES, tmp_path, quiet)
    result = gradients.result()
    shares = {(one["mask"], one["text"], one["time"]): one["shares"] for one in result["coverage"]}
    assert len(shares) == (len(MASKS) + 1) * len(TEXTS) * len(TIMES)

    # The public functions, which make every mask anew.
    loaded = models.load(models.resolve(str(model)))
    config = MaskConfig(density=1e-2, sequences=3, max_length=48)
    of_task = MaskConfig(density=1e-2, sequences=4, max_length=48)
    configs = {
        "corpus": (config, texts["corpus"]),
        "task": (of_task, texts["task"]),
        "largest": (MaskConfig(density=1e-2, kind="largest"), None),
        "random": (MaskConfig(density=1e-2, kind="random"), None),
        "grasp": (
            MaskConfig(density=1e-2, kind="grasp", sequences=2, max_length=48),
            texts["corpus"],
        ),
    }
    with averaged_squares(
        loaded, texts["held-out task"], of_task, tmp_path, progress=quiet
    ) as squares:
        for name, (chosen, data) in configs.items():
            mask, _ = choose_mask(loaded, data, chosen, tmp_path, progress=quiet)
            expected = coverage(mask, squares)
            assert shares[name, "held-out task", "before"][1] == pytest.approx(expected, rel=1e-5)
            file = read_mask(gradients.mask_file(name, 1e-2))
            # The public function knows the name of the corpus's file alone.
            assert file.facts == mask.facts
            assert all(torch.equal(file.places[one], mask.places[one]) for one in mask.places)

    # A mask covers its own text best, and fine-tuning changes what it covers.
    before = shares["task, chosen anew", "task", "before"]
    assert before == shares["task", "task", "before"]
    after = shares["task, chosen anew", "task", "after"]
    assert all(a > b for a, b in zip(after, shares["task", "task", "after"], strict=True))
    assert all(a > b for a, b in zip(before, shares["random", "task", "before"], strict=True))
    assert shares["random", "task", "before"] != shares["random", "task", "after"]
    loss = result["tuning"]["loss"]
    assert loss["after"] < loss["before"]

    table = result["overlap"]["shares"]
    assert len(table) == len(SIZES.densities)
    for at_density in table:
        assert [at_density[n][n] for n in range(6)] == [1.0] * 6
        assert at_density[0][1] == pytest.approx(at_density[1][0])
    first = result["curves"][0]
    assert first["mean"] == sorted(first["mean"])
    assert first["mean"][-1] == pytest.approx(1)

    def refuse(*arguments: Any, **named: Any) -> None:
        raise AssertionError("what is kept is made again")

    for name in ("averaged_squares", "hessian_gradients", "fine_tune"):
        monkeypatch.setattr(mask_gradients, name, refuse)
    monkeypatch.setattr(sums, "ranking", refuse)
    assert Gradients(str(model), texts, SIZES, tmp_path, quiet).result() == result


def test_what_is_padded_does_not_count(tiny: tuple[Path, dict[str, Path]]) -> None:
    model, texts = tiny
    loaded = models.load(models.resolve(str(model)))
    config = MaskConfig(sequences=4, max_length=48)
    sequences = mask_gradients.read_text(texts["task"], loaded, config).sequences
    assert len({len(sequence.tokens) for sequence in sequences}) > 1
    counts = [sum(label >= 0 for label in sequence.labels) for sequence in sequences]
    each = [mask_gradients.mean_loss(loaded.model, [sequence]) for sequence in sequences]
    expected = sum(n * loss for n, loss in zip(counts, each, strict=True)) / sum(counts)
    together = float(mask_gradients.batch_loss(loaded.model, sequences))
    assert together == pytest.approx(expected, rel=1e-5)


def result(*, trained: bool) -> dict[str, Any]:
    """Made-up figures of two densities."""
    plan = {
        "promises": [5e-5],
        "densities": [1e-3, 1e-2],
        "weights": "int4",
        "steps": 9,
        "batch_size": 4,
        "num_queries": 4,
        "max_length": 64,
        "seed": 0,
        "evaluated": 100,
        "sequences": 8,
    }
    names = ["corpus, before", "task, before"]
    run = {"rate": 7e-5, "steps": 9, "loss": 0.6, "accuracy": 0.71, "seconds_per_step": 1.5}
    diverged = {**run, "loss": None, "accuracy": None, "seconds_per_step": None}
    untrained = {"loss": 1.7, "accuracy": 0.52}

    def case(mask: str, density: float, *runs: Any, dynamic: bool = False) -> dict[str, Any]:
        facts = {"mask": mask, "density": density, "dynamic": dynamic}
        return {**facts, "untrained": untrained, "runs": list(runs)}

    done = [
        case("corpus", 1e-3, run),
        case("corpus", 1e-2, run),
        case("task", 1e-3, run),
        case("random", 1e-3, diverged),
        case("task", 1e-3, {**run, "phases": 4, "accuracy": 0.69}, dynamic=True),
    ]
    return {
        "densities": [1e-3, 1e-2],
        "chosen": [10, 100],
        "weights": 10000,
        "layers": 14,
        "tuning": {"loss": {"before": 3.25, "after": 1.125}},
        "coverage": [
            {"mask": mask, "text": text, "time": time, "shares": [0.00123, 0.456]}
            for mask in masks_page.SHOWN
            for text in TEXTS
            for time in TIMES
        ],
        "fractions": list(sums.FRACTIONS),
        "curves": [
            {
                "text": text,
                "time": time,
                "mean": list(sums.FRACTIONS),
                "std": [0.01] * len(sums.FRACTIONS),
            }
            for text in TEXTS
            for time in TIMES
        ],
        "overlap": {"names": names, "shares": [[[1.0, 0.25], [0.25, 1.0]]] * 2},
        "trained": done if trained else [],
        "conditions": {
            "command": masks.command_of(masks.MODEL, 1.0),
            "model": {"name": "tiny", "sha256": "0"},
            "date": "2026-01-01",
            "sizes": masks.dataclasses.asdict(Sizes()),
            "plan": plan,
            "load_average": [0.5, 0.6],
            "threads": 2,
            "cpu": "A processor",
            "cores": 2,
            "system": "Linux",
            "python": "3.11",
            "versions": {"zoexport": "0"},
        },
    }
