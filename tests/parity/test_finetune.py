"""``finetune``: from a model and examples to an adapter, resumed and refused."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

import zoexport
from tests.support.compiled import Compiler
from tests.support.hosts import ROOT
from tests.support.qnn import needs_qnn
from zoexport.api import finetuning
from zoexport.cli.main import run
from zoexport.core.errors import (
    STOPPED,
    Cancelled,
    ConfigError,
    DataError,
    StateError,
    ZoExportError,
)

pytestmark = pytest.mark.parity

WORDS = ("time", "person", "year", "way", "day", "thing", "world", "life", "hand", "part")


def examples(count: int = 30) -> list[dict[str, str]]:
    return [
        {"prompt": f"Say {WORDS[n % 10]} {n}:", "completion": f" {WORDS[(n + 1) % 10]}"}
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def model(compiler: Compiler) -> str:
    return str(compiler.model("llama"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cached(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOEXPORT_CACHE", str(cache))


def tuned(model: str, output: Path, data: Any = None, **options: Any) -> zoexport.Run:
    options = {"max_length": 64, "steps": 8, "learning_rate": 1e-2, "max_new_tokens": 4, **options}
    return zoexport.finetune(model, examples() if data is None else data, output=output, **options)


def test_finetune_trains_compares_and_exports(model: str, tmp_path: Path) -> None:
    done = tuned(model, tmp_path / "out")
    sizes = [
        len((tmp_path / "out" / "data" / f"{name}.jsonl").read_text().splitlines())
        for name in ("train", "valid")
    ]
    assert sizes == [27, 3] and done.trained.examples == 27
    assert done.trained.steps == 8 and not done.resumed
    assert len(done.comparisons) == 3
    prompts = {one["prompt"]: one["completion"] for one in examples()}
    for one in done.comparisons:
        assert one.expected == prompts[one.prompt]
    assert any(one.before != one.after for one in done.comparisons)
    best = min(done.trained.evaluations, key=lambda one: one["loss"])
    assert best["loss"] < done.trained.evaluations[0]["loss"]
    found = done.evaluate(tmp_path / "out" / "data" / "valid.jsonl")
    assert found.loss == pytest.approx(best["loss"], rel=1e-6)
    assert (done.adapter / "adapter_model.safetensors").is_file()
    again = done.bundle.import_adapter(done.adapter, state=tmp_path / "imported")
    assert again.tensors > 0
    exported = done.export(tmp_path / "adapter.gguf", format="gguf")
    assert exported.adapter.is_file()


def test_the_picture_of_the_front_page(model: str, tmp_path: Path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "own_messages" / "picture.py"))
    with example["MAILS"].open() as file:
        mails = [json.loads(line) for line in file]
    assert len(mails) == 60
    done = tuned(model, tmp_path / "out", mails[:10], steps=3)
    example["draw"](done, tmp_path / "loss.png")
    for name in ("loss.png", "loss-dark.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@needs_qnn
def test_finetune_on_the_npu(model: str, tmp_path: Path) -> None:
    done = tuned(
        model,
        tmp_path / "out",
        target="android-npu",
        steps=6,
        max_length=24,
        settings={"labels": "16", "lora.r": 4},
    )
    assert done.trained.steps == 6 and done.trained.engine == "qnn"
    assert len(done.comparisons) == 3


def test_finetune_resumes_without_compiling(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(step: Any) -> None:
        if step.step == 3:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tuned(model, tmp_path / "out", progress=stop)
    whole = tuned(model, tmp_path / "whole")
    monkeypatch.delattr(finetuning, "cached_bundle")
    resumed = tuned(model, tmp_path / "out")
    assert resumed.resumed and resumed.trained.losses == whole.trained.losses
    assert tuned(model, tmp_path / "out", steps=10).trained.steps == 10
    assert tuned(model, tmp_path / "out", steps=None, epochs=0.5).trained.total_steps == 14


def test_finetune_refuses_to_mix_runs(model: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    tuned(model, output, steps=2)
    before = sorted(path.name for path in output.rglob("*"))
    for changed, said in (
        ({"data": examples(20)}, "training examples, validation examples"),
        ({"learning_rate": 1e-3}, "settings"),
        ({"method": "mezo"}, "method"),
    ):
        with pytest.raises(ConfigError, match=f"other {said}.*overwrite=True"):
            tuned(model, output, **{"steps": 2, **changed})
    assert sorted(path.name for path in output.rglob("*")) == before
    with pytest.raises(DataError):
        tuned(model, output, [{"prompt": "a"}], steps=2, overwrite=True)
    assert sorted(path.name for path in output.rglob("*")) == before
    other = tuned(model, output, examples(20), steps=2, overwrite=True)
    assert not other.resumed and other.trained.examples == 18
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="did not write"):
            tuned(model, tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_finetune_leaves_nothing_after_bad_input(model: str, tmp_path: Path) -> None:
    broken = [*examples(12), {"prompt": "a", "completion": ""}]
    with pytest.raises(ZoExportError, match="example 12"):
        tuned(model, tmp_path / "out", broken)
    bad: tuple[dict[str, Any], ...] = (
        {"data": [{"prompt": "a"}]},
        {"steps": 1, "epochs": 1.0},
        {"settings": {"nonsense": 1}},
        {"target": "abacus"},
    )
    for options in bad:
        with pytest.raises(ZoExportError):
            tuned(model, tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()


def test_finetune_reads_what_others_write(model: str, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    mixed = [*examples(3), {"text": "one two three"}, {"text": "four five six"}]
    lines = [json.dumps(one) for one in mixed]
    data.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n")
    done = tuned(model, tmp_path / "out", data, eval_data=data, steps=2)
    assert done.trained.examples == 5 and len(done.comparisons) == 3
    texts = tuned(model, tmp_path / "texts", data, eval_data=mixed[2:], steps=2)
    assert sorted(one.prompt for one in texts.comparisons) == sorted(
        [mixed[2]["prompt"], "one two three", "four five six"]
    )
    assert tuned(model, tmp_path / "split", data, steps=2).trained.examples == 4
    plain = tuned(model, tmp_path / "plain", data, steps=2, settings={"generate": "false"})
    assert plain.comparisons == ()
    data.write_text("\n")
    with pytest.raises(DataError, match="no examples"):
        tuned(model, tmp_path / "empty", data)
    assert not (tmp_path / "empty").exists()


def test_finetune_makes_room_for_the_longest_example(model: str, tmp_path: Path) -> None:
    data = [*examples(12), {"text": " ".join(WORDS * 2)}]
    done = tuned(model, tmp_path / "out", data, max_length=None, settings={"max_length": "16"})
    assert done.bundle.settings["max_length"] == 16 and done.trained.shortened > 0
    done = tuned(
        model, tmp_path / "fits", data, max_length=None, method="mezo", eval_data=examples(3)
    )
    assert done.trained.shortened == 0
    assert done.bundle.settings["max_length"] % 64 == 0
    assert len((tmp_path / "fits" / "data" / "train.jsonl").read_text().splitlines()) == 13


def test_the_command_prints_what_changed_and_what_to_do_next(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in examples(10)))
    line = ["finetune", model, "--data", str(data), "-o", str(tmp_path / "out")]
    line += ["--max-length", "64", "--epochs", "1"]
    assert run(line) == 0
    out, _ = capfd.readouterr()
    assert "Fine-tuned on 9 examples in 9 steps." in out
    assert "before" in out and "after" in out and "zoexport chat" in out
    assert run([*line, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["steps"] == 9 and found["resumed"] and len(found["comparisons"]) == 1


def test_train_stops_by_the_callback_and_starts_over(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tuned(model, tmp_path / "out", steps=1).bundle
    state, data = tmp_path / "run", examples(6)

    def twice(step: Any) -> bool:
        return step.step == 2

    stopped = bundle.train(data, state=state, epochs=1, progress=twice)
    assert (stopped.steps, stopped.total_steps) == (2, 6)
    whole = bundle.train(data, state=state, epochs=1)
    assert whole.steps == 6 and whole.losses[:2] == stopped.losses
    with pytest.raises(StateError):
        bundle.train(examples(5), state=state, epochs=1)
    with pytest.raises(DataError):
        bundle.train([{"prompt": "a"}], state=state, epochs=1, overwrite=True)
    assert bundle.train(data, state=state, epochs=1).step_seconds_median is None
    again = bundle.train(data, state=state, epochs=1, overwrite=True, progress=True)
    assert "train: step 6/6" in capfd.readouterr().err
    assert again.step_seconds_median is not None and again.losses == whole.losses
    for wrong in ({}, {"steps": 1, "epochs": 1.0}):
        with pytest.raises(ConfigError, match="steps and epochs"):
            bundle.train(data, state=state, **wrong)


def test_a_stopped_run_is_a_keyboard_interrupt() -> None:
    stopped = Cancelled("step 30 of 100", found=STOPPED, expected="more", fix="Run again.")
    assert isinstance(stopped, KeyboardInterrupt)
    assert str(stopped) == "Stopped at step 30 of 100. Run again."
