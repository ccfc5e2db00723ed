"""The benchmark's matrix, rounds, figures and files, on made-up samples; the command's messages."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.benchmarks import CONDITIONS
from tests.support.bundles import write_bundle
from zoexport.cli.bench import bench
from zoexport.cli.main import run
from zoexport.core.errors import BundleError, ConfigError
from zoexport.data.examples import IGNORED
from zoexport.tools.bench import eager_process, matrix, output, summary
from zoexport.tools.bench.matrix import EAGER, Axes, Shape, Variant
from zoexport.tools.bench.rounds import Plan, measure
from zoexport.tools.bench.runner import Sample, sample
from zoexport.tools.bench.workload import examples

SHAPE = Shape(64, 1, 1)
PRGE, MEZO = Variant("prge", "int4", SHAPE), Variant("mezo", "int4", SHAPE)
BASELINE = Variant(EAGER, "fp32", SHAPE)


def quiet(phase: str, done: float | None) -> None:
    assert phase and (done is None or 0 <= done <= 1)


def taken(seconds: float, **changes: Any) -> Sample:
    made = Sample(
        [seconds] * 3, {"train": seconds * 0.9, "session": seconds * 0.1}, 0.2, 100.0, 50.0
    )
    return dataclasses.replace(made, **changes)


# The matrix.


@pytest.mark.parametrize("name", list(matrix.PRESETS))
def test_every_preset_has_variants_of_their_own_names(name: str) -> None:
    found = matrix.variants(matrix.preset(name), {})
    assert len({str(variant) for variant in found}) == len(found) > 1


def test_what_the_presets_promise() -> None:
    quick = matrix.variants(matrix.preset("quick"), {})
    assert {(v.method, v.weights) for v in quick} == {
        ("prge", "int4"), ("prge", "fp32"), ("mezo", "int4"), ("mezo", "fp32"), (EAGER, "fp32"),
    }  # fmt: skip
    assert {(v.shape.max_length, v.shape.num_queries, v.shape.batch_size) for v in quick} == {
        (64, 1, 1)
    }
    queries = matrix.variants(matrix.preset("queries"), {})
    assert {v.shape.num_queries for v in queries} == {1, 2, 4, 8, 16}
    assert {v.shape.num_queries * v.shape.batch_size for v in queries} == {16}
    layers = matrix.variants(matrix.preset("layers"), {})
    assert [(v.shape.layers, v.shape.labels, v.shape.num_queries) for v in layers] == [
        ("all", "last", 4),
        ("last:8", "last", 4),
    ]
    full = matrix.variants(matrix.preset("full"), {})
    assert set(full) == {*quick, *queries, *layers}


def test_every_axis_is_an_option_of_the_command() -> None:
    options = {option.name for option in bench.params}
    assert {field.name for field in dataclasses.fields(Axes)} <= options


def test_options_replace_axes() -> None:
    changes = {"methods": ("prge",), "weights": ("int8",), "batch_size": (2, 3), "eager": False}
    found = matrix.variants([Axes(rows=16, labels=("all",))], changes)
    assert found == [Variant("prge", "int8", Shape(64, batch, 1)) for batch in (2, 3)]
    # The baseline is measured once a shape, whatever the methods and weights.
    both = matrix.variants([Axes(weights=("int4", "fp32"), labels=("all",))], {})
    assert [v.method for v in both] == ["prge", "prge", EAGER]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_queries": (3,), "rows": 16}, "found 16 with 3 queries"),
        ({"batch_size": (2,), "rows": 16}, "options batch_size= and rows="),
    ],
)
def test_axes_that_do_not_fit_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        matrix.variants([Axes()], changes)


def test_the_examples_of_a_shape() -> None:
    shape = Shape(16, 3, 2, labels="last")
    rows = [example.candidates[0] for example in examples(shape, 300)]
    everywhere = [
        example.candidates[0] for example in examples(dataclasses.replace(shape, labels="all"), 300)
    ]
    assert [row.tokens for row in rows] == [row.tokens for row in everywhere]
    assert len({tuple(row.tokens) for row in rows}) == 3
    for row, full in zip(rows, everywhere, strict=True):
        assert len(row.tokens) == len(row.labels) == 16
        assert full.labels == [*row.tokens[1:], IGNORED]
        assert row.labels == [IGNORED] * 14 + full.labels[-2:]
        assert all(0 <= token < 300 for token in row.tokens)


# A round of the runner.


def test_what_the_runner_prints_becomes_a_sample() -> None:
    def line(seconds: float, spent: float) -> dict[str, Any]:
        programs = {"train": {"calls": 1, "seconds": spent, "load_seconds": 0.25}}
        return {"seconds": seconds, "programs": programs}

    lines = [line(5.0, 4.0), line(1.0, 4.75), line(2.0, 6.25)]
    result = {"programs": lines[-1]["programs"], "open_seconds": 0.05}
    found = sample(lines, {**result, "peak_rss_mb": 9.0, "peak_anonymous_mb": 4.0}, warmup=1)
    assert found.seconds == [1.0, 2.0]
    assert found.parts == pytest.approx({"train": 1.125, "session": 0.375})
    assert found.load_seconds == pytest.approx(0.3)
    assert (found.peak_rss_mb, found.peak_anonymous_mb) == (9.0, 4.0)


# Rounds.


class Machine:
    """Measures instantly, notes what it was asked, and stops at a call."""

    def __init__(self, stop_at: int | None = None, step: float = 0.1) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.stop_at, self.step = stop_at, step

    def __call__(self, variant: Variant, steps: int, warmup: int) -> Sample:
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((variant.method, steps, warmup))
        return taken(self.step + len(self.calls) / 1000)


def test_a_baseline_gives_memory_back_before_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would count to the next variant, whose process is watched from its request on."""
    happened: list[str] = []

    class Side:
        def __init__(self, model: str, threads: int) -> None:
            happened.append(f"{model} with {threads} threads")

        def sample(self, request: dict[str, Any]) -> Sample:
            happened.append(f"{request['steps']} steps")
            return Sample(
                seconds=[1.0], parts={}, load_seconds=None, peak_rss_mb=2.0, peak_anonymous_mb=1.0
            )

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            happened.append(f"answer of {json.loads(text)['sample']['seconds']}")
            return super().write(text)

    monkeypatch.setattr(eager_process, "_Side", Side)
    monkeypatch.setattr(eager_process, "give_back", lambda: happened.append("memory given back"))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"steps": 3}\n{"steps": 4}\n'))
    monkeypatch.setattr("sys.stdout", Output())
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert eager_process.main(["model", "2"]) == 0
    each = ["memory given back", "answer of [1.0]"]
    assert happened == ["model with 2 threads", "3 steps", *each, "4 steps", *each]


def test_variants_take_turns_and_slow_ones_take_fewer_steps(tmp_path: Path) -> None:
    machine = Machine(step=1.0)
    rounds, resumed = measure([PRGE, MEZO], Plan(2, 15, 3), machine, tmp_path / "partial", quiet)
    assert resumed == 0 and [set(taken) for taken in rounds] == [{str(PRGE), str(MEZO)}] * 2
    # Another variant begins each round.
    assert [call[0] for call in machine.calls[2:]] == ["prge", "mezo", "mezo", "prge"]
    assert {call[1:] for call in machine.calls[2:]} == {(4, 3)}
    slow = Machine(step=60.0)
    measure([PRGE], Plan(1, 15, 3), slow, tmp_path / "other", quiet)
    assert slow.calls[-1] == ("prge", 3, 3)


def test_a_stopped_measurement_goes_on_with_the_rounds_it_has(tmp_path: Path) -> None:
    partial, plan, variants = tmp_path / "partial", Plan(3, 5, 1), [PRGE, MEZO]
    stopped = Machine(stop_at=5)  # two warm-ups, a whole round, and half of the second
    with pytest.raises(KeyboardInterrupt):
        measure(variants, plan, stopped, partial, quiet)
    again = Machine()
    rounds, resumed = measure(variants, plan, again, partial, quiet)
    assert (len(rounds), resumed) == (3, 1)
    assert len(again.calls) == 2 + 4
    assert rounds[0][str(PRGE)] == taken(0.1 + 3 / 1000)
    nothing = Machine()
    assert measure(variants, plan, nothing, partial, quiet) == (rounds, 3)
    assert nothing.calls == []


def test_rounds_of_other_variants_or_damaged_ones_are_not_used(tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    measure([PRGE, MEZO], Plan(1, 5, 1), Machine(), partial, quiet)
    assert measure([PRGE], Plan(1, 5, 1), Machine(), partial, quiet)[1] == 0
    partial.write_text("{")
    assert measure([PRGE], Plan(1, 5, 1), Machine(), partial, quiet)[1] == 0


# Figures.


def rounds_of(*seconds: dict[Variant, float]) -> list[dict[str, Sample]]:
    return [{str(variant): taken(value) for variant, value in each.items()} for each in seconds]


def test_ratios_are_medians_of_the_rounds_own_ratios() -> None:
    # In the third round the machine was ten times slower for all.
    times = [(0.1, 0.2, 0.5), (0.1, 0.1, 0.6), (1.0, 2.0, 7.0)]
    rounds = rounds_of(*({PRGE: prge, MEZO: mezo, BASELINE: eager} for prge, mezo, eager in times))
    found = {
        (entry["kind"], entry["of"]): entry
        for entry in summary.ratios([PRGE, MEZO, BASELINE], rounds)
    }
    assert set(found) == {
        ("faster than eager", str(PRGE)),
        ("faster than eager", str(MEZO)),
        ("prge faster than mezo", str(PRGE)),
    }
    entry = found["faster than eager", str(PRGE)]
    assert entry["to"] == str(BASELINE)
    assert [entry[key] for key in ("ratio", "ratio_least", "ratio_most")] == [6.0, 5.0, 7.0]
    assert entry["ratio_of_fastest"] == 5.0
    assert found["prge faster than mezo", str(PRGE)]["ratio"] == 2.0
    assert found["prge faster than mezo", str(PRGE)]["ratio_of_fastest"] == 1.0
    assert found["faster than eager", str(MEZO)]["ratio"] == 3.5


def test_the_spread_over_queries_and_the_share_of_fewer_layers() -> None:
    queries = [Variant("prge", "int4", Shape(64, 16 // q, q)) for q in (1, 4, 16)]
    other = Variant("prge", "int4", Shape(64, 4, 1))  # another q * B
    whole = Variant("prge", "int4", Shape(64, 1, 4, labels="last"))
    part = dataclasses.replace(whole, shape=dataclasses.replace(whole.shape, layers="last:8"))
    variants = [*queries, other, whole, part]
    seconds = [1.0, 1.1, 0.88, 9.0, 2.0, 0.8]
    rounds = rounds_of(dict(zip(variants, seconds, strict=True)))
    spread, layers = sorted(
        summary.ratios(variants, rounds), key=lambda entry: entry["kind"], reverse=True
    )
    assert spread["kind"] == "spread over queries"
    assert spread["of"] == [str(variant) for variant in queries]
    assert spread["ratio"] == pytest.approx(1.25) and spread["to_first"] == [1.0, 1.1, 0.88]
    assert (layers["kind"], layers["of"], layers["to"]) == ("fewer layers", str(part), str(whole))
    assert layers["ratio"] == 0.4


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    bundle = write_bundle(tmp_path / "bundle")
    rounds = rounds_of({PRGE: 0.1, BASELINE: 0.5}, {PRGE: 0.2, BASELINE: 0.8})
    return {
        "results": summary.results([PRGE, BASELINE], rounds, {PRGE: bundle}),
        "ratios": summary.ratios([PRGE, BASELINE], rounds),
        "conditions": {**CONDITIONS},
    }


def test_a_result_of_a_variant(result: dict[str, Any]) -> None:
    prge, eager = result["results"]
    assert prge["step_seconds"] == pytest.approx(0.15)
    assert (prge["step_seconds_least"], prge["step_seconds_most"]) == (0.1, 0.2)
    assert prge["share_by_part"] == {"train": 0.9, "session": 0.1}
    assert (prge["load_seconds"], prge["peak_rss_mb"], prge["peak_anonymous_mb"]) == (
        0.2,
        100.0,
        50.0,
    )
    assert prge["steps"] == 6 and prge["bundle_bytes"] > 0
    assert prge["bundle"].endswith("bundle") and eager["bundle"] is None
    assert prge["compiling"] is None  # it was there


def test_what_is_written_and_shown(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    output.write(tmp_path, result)
    assert json.loads((tmp_path / output.JSON).read_text()) == result
    page = (tmp_path / output.MARKDOWN).read_text()
    assert (
        f"]({output.PICTURE})" in page and "| prge | int4/" in page and "a CPU, 2 threads" in page
    )
    first = (tmp_path / output.PICTURE).read_bytes()
    assert first.startswith(b"\x89PNG")
    output.draw(tmp_path / output.PICTURE, result)
    assert (tmp_path / output.PICTURE).read_bytes() == first
    shown = "\n".join(output.lines(result))
    assert "faster than eager: prge int4, seq 64" in shown and "4.5" in shown
    assert "busy" not in shown + page and "random" not in shown + page
    result["conditions"]["random_weights"] = "qwen2.5-0.5b"
    for text in ("\n".join(output.lines(result)), output.markdown(result)):
        assert "random weights of qwen2.5-0.5b's shape" in text
    result["conditions"]["load_average"] = [0.1, 3.5]
    assert "busy" in "\n".join(output.lines(result)) and "**Preliminary**" in output.markdown(
        result
    )


# The command's messages.


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["MODEL", "--grid", "quik"], 2, "option --grid quik: found no such grid"),
        (["MODEL", "--max-length", "64,x"], 2, "'x' is not a valid integer"),
        (["MODEL", "--labels", "first"], 2, "'first' is not one of"),
        (["MODEL", "--rows", "6", "--num-queries", "4"], 2, "found 6 with 4 queries"),
        (["MODEL", "--methods", "prgee"], 2, "Did you mean 'prge'?"),
        (["MODEL", "--weights", "int5"], 2, "setting 'weights': found 'int5'"),
        (["MODEL", "--set", "batch_size=2"], 2, "--batch-size, which takes several values"),
        (["MODEL", "--target", "moon"], 2, "moon"),
        ([], 2, "found neither"),
        (["MODEL", "--shape", "qwen2.5-0.5b"], 2, "found both"),
        (["--shape", "qwen2.5-0.6b"], 2, "expected one of gemma-3n-e2b, gemma3-1b, gemma3-270m"),
        (["nothing-like-this/at-all/x"], 1, "no such file or directory"),
        (["BUNDLE", "--num-queries", "2"], 2, "option --num-queries: found bundles"),
        (["BUNDLE", "nowhere"], 2, "argument nowhere: found no such folder"),
        (["BUNDLE", "."], 1, "found no manifest.json"),
        (["BUNDLE", "-o", "FILE/out"], 2, "a place that can be written"),
        (["BUNDLE", "-o", "BUNDLE"], 2, "something that is already there"),
    ],
)
def test_bad_calls_are_one_message_and_write_nothing(
    arguments: list[str],
    code: int,
    message: str,
    bundle: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "model").mkdir()
    places = {"BUNDLE": bundle, "MODEL": tmp_path / "model", "FILE/out": tmp_path / "file" / "out"}
    given = [str(places.get(argument, argument)) for argument in arguments]
    before = sorted(tmp_path.rglob("*"))
    assert run(["bench", *given, "--work", str(tmp_path / "work"), "--json"]) == code
    out, err = capfd.readouterr()
    assert message in json.loads(out)["error"]["message"]
    assert err.splitlines()[-1].startswith("error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bundle_that_cannot_be_run_is_said_in_the_runners_words(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoexport.tools.bench.runner import run_steps
    from zoexport.tools.bench.workload import examples_file

    measured: Callable[[], Sample] = lambda: run_steps(  # noqa: E731
        bundle, examples_file(tmp_path, Shape(4, 1, 1), 8), threads=1, steps=1, warmup=1
    )
    # The hand-made bundle's engine is one that a host supplies.
    with pytest.raises(BundleError, match="the engine"):
        measured()
