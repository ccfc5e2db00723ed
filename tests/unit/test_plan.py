"""plan: figures from a configuration alone, how they grow, and what is said about a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary

from tests.support.tiny_models import save_tiny, tiny, tiny_config
from zoexport import build, models
from zoexport.cli.main import run
from zoexport.plan import plan_training
from zoexport.plan.estimate import PROCESSES

SMALL = {"seq_len": "32", "batch": "1", "lora.rank": "4"}
KEYS = {
    "model",
    "method",
    "target",
    "settings",
    "process",
    "threads",
    "peak_anonymous_mb",
    "peak_rss_mb",
    "disk_mb",
    "flops_per_step",
    "bytes_per_step",
    "anonymous_mb_by_process",
    "breakdown",
    "budget_mb",
    "fits",
    "advice",
}


def _config_only(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True)
    tiny_config(name).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _config_only("llama", tmp_path_factory.mktemp("configs") / "llama")


def _plan(folder: Path, method: str = "mebp", **given: Any) -> dict[str, Any]:
    budget = given.pop("budget_mb", None)
    values = {**SMALL, **{key.replace("__", "."): str(value) for key, value in given.items()}}
    return plan_training(
        str(folder),
        method=method,
        target="host",
        settings=values,
        budget_mb=budget,
        process="runner",
        progress=lambda *_: None,
    )


def test_the_result_adds_up(llama: Path) -> None:
    found = _plan(llama)
    assert found.keys() == KEYS
    assert (found["fits"], found["budget_mb"]) == (None, None)
    assert found["settings"]["lora.rank"] == 4
    parts = found["breakdown"]
    anonymous = sum(parts["anonymous"].values())
    assert anonymous == pytest.approx(found["peak_anonymous_mb"], abs=0.3)
    assert anonymous + sum(parts["mapped"].values()) == pytest.approx(found["peak_rss_mb"], abs=0.6)
    disk = parts["disk"]
    assert disk["bundle"] + disk["state"] == pytest.approx(found["disk_mb"], abs=0.2)
    assert found["anonymous_mb_by_process"].keys() == PROCESSES.keys()


def test_a_directory_with_weights_gives_the_same(llama: Path, tmp_path: Path) -> None:
    whole = save_tiny("llama", tmp_path / "llama", tokenizer=False)
    assert _plan(whole) == _plan(llama)


@pytest.mark.parametrize("name", ["llama_tied", "gemma3", "gpt2", "bloom"])
def test_a_blank_model_is_the_loaded_one_without_values(name: str, tmp_path: Path) -> None:
    folder = _config_only(name, tmp_path / name)
    found = models.blank(models.resolve(str(folder), weights=False))
    loaded = models.load(models.resolve(str(save_tiny(name, tmp_path / "whole"))))
    ours, theirs = found.model.state_dict(), loaded.model.state_dict()
    assert {n: v.shape for n, v in ours.items()} == {n: v.shape for n, v in theirs.items()}
    assert len(list(found.model.parameters())) == len(list(loaded.model.parameters()))
    assert type(found.model) is type(tiny(name))
    for one, other in zip(found.model.buffers(), loaded.model.buffers(), strict=True):
        assert (one == other).all()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("method", ["mebp", "mezo"])
def test_planned_memory_is_that_of_the_program_file(name: str, method: str, tmp_path: Path) -> None:
    settings = {**SMALL, "lora.targets": "all-linear"}
    if method != "mebp":
        settings["split"] = "layers"
    planned = build.plan(method, "host", settings)
    folder = _config_only(name, tmp_path / name)
    model = models.blank(models.resolve(str(folder), weights=False)).model
    length = build.capture_length(planned, model)
    assert length is not None
    captured = build.captured(model, length, 32, lambda *_: None)
    graph = build.sized_graph(planned, model, captured, lambda *_: None)
    found = planned.target.footprints(graph, lambda *_: None)
    planned.target.lower(graph, planned.config, tmp_path, lambda *_: None)
    program = deserialize_pte_binary((tmp_path / "model.pte").read_bytes()).program
    sizes = {plan.name: sum(plan.non_const_buffer_sizes) for plan in program.execution_plan}
    assert {
        "".join(c if c.isalnum() else "_" for c in n): f.planned for n, f in found.items()
    } == sizes
    assert max(sizes.values()) > 0
    # A second variant of the same captured graph.
    again = build.sized_graph(planned, model, captured, lambda *_: None)
    assert planned.target.footprints(again, lambda *_: None) == found


def test_figures_grow_with_what_is_asked_for(llama: Path) -> None:
    one = _plan(llama)
    longer, wider = _plan(llama, seq_len=64), _plan(llama, batch=2)
    assert 2 * one["flops_per_step"] < longer["flops_per_step"] < 3 * one["flops_per_step"]
    assert wider["flops_per_step"] == 2 * one["flops_per_step"]
    assert _plan(llama, accumulate=3)["flops_per_step"] == 3 * one["flops_per_step"]
    for bigger in (longer, wider):
        assert bigger["bytes_per_step"] > one["bytes_per_step"]
        assert (
            bigger["breakdown"]["anonymous"]["programs"] > one["breakdown"]["anonymous"]["programs"]
        )
    assert _plan(llama, lora__rank=8)["disk_mb"] > one["disk_mb"]
    assert _plan(llama, weights="fp32")["disk_mb"] > one["disk_mb"]
    assert _plan(llama, optimizer="sgd")["disk_mb"] <= one["disk_mb"]
    assert _plan(llama, loss="choices")["flops_per_step"] > one["flops_per_step"]


def test_activations_that_are_not_kept_are_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    tiny_config("llama", num_hidden_layers=8).save_pretrained(folder)
    shapes = {"seq_len": 128, "batch": 16}
    kept, again = _plan(folder, **shapes), _plan(folder, checkpoint_every=3, **shapes)
    assert again["flops_per_step"] > kept["flops_per_step"]
    assert again["breakdown"]["mapped"]["activations"] < kept["breakdown"]["mapped"]["activations"]
    assert again["peak_anonymous_mb"] == kept["peak_anonymous_mb"]


@pytest.mark.parametrize("split", ["layers", "whole"])
def test_queries_cost_two_forward_passes_each(llama: Path, split: str) -> None:
    given: dict[str, Any] = {"split": split, "weights": "fp32"}
    one, four = (_plan(llama, "mezo", queries=q, **given) for q in (1, 4))
    together = _plan(llama, "prge", queries=4, **given)
    assert four["flops_per_step"] == 4 * one["flops_per_step"]
    assert together["flops_per_step"] == pytest.approx(four["flops_per_step"], rel=0.1)
    if split == "whole":
        programs = [p["breakdown"]["anonymous"]["programs"] for p in (one, together)]
        assert programs[1] > programs[0]
    gradients = _plan(llama, weights="fp32")
    assert one["flops_per_step"] < gradients["flops_per_step"] < 3 * one["flops_per_step"]


def test_a_roomy_budget_takes_first_order(llama: Path) -> None:
    found = _plan(llama, budget_mb=1000)
    assert found["fits"] is True
    best, *others = found["options"]
    assert best["first_order"] and best["settings"] == {"seq_len": 32, "batch": 1}
    assert best["peak_anonymous_mb"] == found["peak_anonymous_mb"]
    assert not any(other["first_order"] for other in others) and len(others) == 2
    asked = _plan(llama, "prge", budget_mb=1000)
    assert asked["fits"] is True and asked["options"][0]["method"] == "mebp"
    assert "preferred" in asked["advice"] and "fewer steps" in asked["advice"]


def test_what_does_not_fit_is_made_smaller(llama: Path) -> None:
    asked = {"seq_len": 128, "batch": 32}
    needed = _plan(llama, **asked)["peak_anonymous_mb"]
    small = _plan(llama, seq_len=128)["peak_anonymous_mb"]
    assert small < needed
    found = _plan(llama, budget_mb=(small + needed) / 2, **asked)
    assert found["fits"] is False
    assert found["options"][0]["settings"] == {"seq_len": 128, "batch": 1}
    assert "--method mebp --set seq_len=128 --set batch=1" in found["advice"]


def test_nothing_that_fits_is_an_answer(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["plan", str(llama), "--target", "host", "--budget-mb", "1", "--json"]
    assert run([*line, *(f"--set={key}={value}" for key, value in SMALL.items())]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found.keys() == KEYS | {"options"}
    assert (found["fits"], found["options"]) == (False, [])
    assert "Nothing" in found["advice"]


def test_the_table_names_the_parts(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["plan", str(llama), "--target", "host", "--budget-mb", "100", "--set", "seq_len=32"]
    assert run(line) == 0
    output, progress = capfd.readouterr()
    assert "anonymous memory" in output and "label rows" in output and "It fits" in output
    assert "plan: capturing the model" in progress


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "lora.rnk=8"], 2, "lora.rank"),
        (["--set", "seq_len=32", "--set", "lora.rank=4096"], 2, "at most"),
        (["--budget-mb", "0"], 2, "--budget-mb"),
        (["--method", "adam"], 2, "adam"),
        (["--set", "seq_len=4096"], 1, "128 positions"),
    ],
)
def test_bad_input_is_one_message(
    arguments: list[str], code: int, said: str, llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(llama), "--target", "host", "--json", *arguments]) == code
    output, errors = capfd.readouterr()
    assert said in json.loads(output)["error"]["message"]
    assert errors.splitlines()[-1].startswith("error: ")


def test_a_folder_without_a_configuration_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(tmp_path), "--target", "host"]) == 1
    assert "config.json" in capfd.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert run(["plan", str(tmp_path), "--target", "host"]) == 1
    assert "decoder-only" in capfd.readouterr().err
