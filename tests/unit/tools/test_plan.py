"""plan: figures from a configuration alone, how they grow, and what is said about a budget."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from executorch.exir._serialize._program import deserialize_pte_binary

import zoexport
from tests.support.tiers import slow_after
from tests.support.tiny_models import save_tiny, tiny, tiny_config
from zoexport import models
from zoexport.cli.main import run
from zoexport.compiler import graphs
from zoexport.compiler.plan import Plan, plan
from zoexport.core.config import as_dict
from zoexport.core.graph import TrainingGraph
from zoexport.core.target import Footprint
from zoexport.ir.counts import product_flops
from zoexport.ir.graphs import identifier
from zoexport.targets import targets
from zoexport.tools.compiling import compiling
from zoexport.tools.estimate import PROCESSES, estimate
from zoexport.tools.plan import plan_training

SMALL = {"max_length": "32", "batch_size": "1", "lora.r": "4"}
KEYS = {
    "model",
    "method",
    "target",
    "settings",
    "process",
    "threads",
    "peak_anonymous_mb",
    "compile_peak_anonymous_mb",
    "peak_rss_mb",
    "disk_mb",
    "flops_per_step",
    "bytes_per_step",
    "seconds_per_step",
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


@functools.cache
def _plan(folder: Path, method: str = "mebp", **given: Any) -> dict[str, Any]:
    budget, ram = given.pop("budget_mb", None), given.pop("ram_mb", None)
    target = given.pop("target", "host")
    values = {**SMALL, **{key.replace("__", "."): str(value) for key, value in given.items()}}
    return plan_training(
        str(folder),
        method=method,
        target=target,
        settings=values,
        budget_mb=budget,
        ram_mb=ram,
        process="runner",
        progress=lambda *_: None,
    )


def test_the_result_adds_up(llama: Path) -> None:
    found = _plan(llama)
    assert found.keys() == KEYS
    assert (found["fits"], found["budget_mb"]) == (None, None)
    assert found["settings"]["lora.r"] == 4
    parts = found["breakdown"]
    anonymous = sum(parts["anonymous"].values())
    assert anonymous == pytest.approx(found["peak_anonymous_mb"], abs=0.3)
    assert anonymous + sum(parts["mapped"].values()) == pytest.approx(found["peak_rss_mb"], abs=0.6)
    assert sum(parts["compile"].values()) == pytest.approx(
        found["compile_peak_anonymous_mb"], abs=0.3
    )
    disk = parts["disk"]
    assert disk["bundle"] + disk["state"] == pytest.approx(found["disk_mb"], abs=0.2)
    assert found["anonymous_mb_by_process"].keys() == PROCESSES.keys()


def test_the_time_of_a_step_is_that_of_this_machine(
    llama: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def seconds_at(end: float) -> float:
        """Return the estimate on a machine that takes ``end`` seconds for five products."""
        times = iter((0.0, 0.1, 0.1, 0.1, 0.1, 0.1, end))
        monkeypatch.setattr("zoexport.tools.plan.time.perf_counter", lambda: next(times))
        return zoexport.plan(str(llama), method="mebp", settings=SMALL).seconds_per_step

    slow, fast = seconds_at(400.0), seconds_at(200.0)
    monkeypatch.undo()
    assert slow > 0 and slow == pytest.approx(2 * fast, abs=2e-3)
    assert run(["plan", str(llama), "--target", "host", "--set", "max_length=32"]) == 0
    assert "minutes for 100 steps" in capfd.readouterr().out


def test_a_directory_with_weights_gives_the_same(llama: Path, tmp_path: Path) -> None:
    whole = save_tiny("llama", tmp_path / "llama", tokenizer=False)
    assert {**_plan(whole), "model": "", "seconds_per_step": 0} == {
        **_plan(llama),
        "model": "",
        "seconds_per_step": 0,
    }


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


@pytest.mark.parametrize("name", slow_after(1, ["llama", "gemma3"]))
@pytest.mark.parametrize("method", ["mebp", "mezo"])
def test_planned_memory_is_that_of_the_program_file(name: str, method: str, tmp_path: Path) -> None:
    settings = {**SMALL, "lora.target_modules": "all-linear", "activations": "fp32"}
    planned = plan(method, "host", settings)
    folder = _config_only(name, tmp_path / name)
    model = models.blank(models.resolve(str(folder), weights=False)).model
    length = graphs.capture_length(planned, model)
    assert length is not None
    captured = graphs.captured(planned, model, length, lambda *_: None)
    graph = graphs.sized_graph(planned, model, captured, lambda *_: None)
    found = planned.target.footprints(graph, planned.config, lambda *_: None)
    planned.target.lower(graph, planned.config, tmp_path, lambda *_: None)
    program = deserialize_pte_binary((tmp_path / "model.pte").read_bytes()).program
    sizes = {plan.name: sum(plan.non_const_buffer_sizes) for plan in program.execution_plan}
    planned_bytes = {identifier(name): one.planned for name, one in found.items()}
    # The kernel that scores labels takes rows of its own.
    assert planned_bytes.pop("head") > sizes.pop("head") > 0
    assert planned_bytes == sizes
    assert max(sizes.values()) > 0
    # A second variant of the same captured graph.
    again = graphs.sized_graph(planned, model, captured, lambda *_: None)
    assert planned.target.footprints(again, planned.config, lambda *_: None) == found


@pytest.mark.slow
def test_figures_grow_with_what_is_asked_for(llama: Path) -> None:
    one = _plan(llama)
    longer, wider = _plan(llama, max_length=64), _plan(llama, batch_size=2)
    assert 2 * one["flops_per_step"] < longer["flops_per_step"] < 3 * one["flops_per_step"]
    assert wider["flops_per_step"] == 2 * one["flops_per_step"]
    assert (
        _plan(llama, gradient_accumulation_steps=3)["flops_per_step"] == 3 * one["flops_per_step"]
    )
    for bigger in (longer, wider):
        assert bigger["bytes_per_step"] > one["bytes_per_step"]
        assert (
            bigger["breakdown"]["anonymous"]["programs"] > one["breakdown"]["anonymous"]["programs"]
        )
    assert _plan(llama, lora__r=8)["disk_mb"] > one["disk_mb"]
    assert _plan(llama, weights="fp32")["disk_mb"] > one["disk_mb"]
    assert _plan(llama, optimizer="sgd")["disk_mb"] <= one["disk_mb"]
    assert _plan(llama, loss="choices")["flops_per_step"] > one["flops_per_step"]


def test_masks_of_dropout_are_counted(llama: Path) -> None:
    """One number for each element of the input of each of a layer's adapters, whatever the number of layers."""
    shapes = {"max_length": 128, "batch_size": 16}
    without, dropped = _plan(llama, **shapes), _plan(llama, lora__dropout=0.1, **shapes)
    hidden = tiny_config("llama").hidden_size
    masks = dropped["breakdown"]["anonymous"]["dropout"]
    assert masks == pytest.approx(2 * 4 * 16 * 128 * hidden / 1e6, abs=0.06)
    assert "dropout" not in without["breakdown"]["anonymous"]
    more = dropped["peak_anonymous_mb"] - without["peak_anonymous_mb"]
    assert masks - 0.2 <= more <= 3 * masks


def test_ranks_of_modules_are_counted(llama: Path) -> None:
    """Both matrices of a module and their two moments, in two snapshots and two halves of the work file."""
    pattern = _plan(llama, lora__rank_pattern="{q_proj: 64}")
    config = tiny_config("llama")
    more = config.num_hidden_layers * (64 - 4) * 2 * config.hidden_size
    found = pattern["breakdown"]["disk"]["state"] - _plan(llama)["breakdown"]["disk"]["state"]
    assert found == pytest.approx(4 * 3 * 4 * more / 1e6, abs=0.1)


@pytest.mark.slow
def test_the_head_multiplies_as_many_rows_as_there_are_labels(llama: Path) -> None:
    def planned(method: str, labels: int | None) -> int:
        settings = {"max_length": "64", "batch_size": "8"}
        settings |= {} if method == "mebp" else {"num_queries": "2"}
        found = plan_training(
            str(llama),
            method=method,
            target="host",
            settings=settings,
            labels=labels,
            progress=lambda *_: None,
        )
        return int(found["flops_per_step"])

    for method in ("mebp", "mezo", "prge"):
        every, most = planned(method, None), planned(method, 10_000)
        one, few, more = (planned(method, labels) for labels in (1, 8, 64))
        assert 0 < (few - one) * 8 == more - few
        assert more < every == most


@pytest.mark.slow
def test_activations_that_are_not_kept_are_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    tiny_config("llama", num_hidden_layers=8).save_pretrained(folder)
    shapes = {"max_length": 128, "batch_size": 16, "activation_cache_mb": 0}
    kept, again = _plan(folder, **shapes), _plan(folder, checkpoint_every=3, **shapes)
    assert again["flops_per_step"] > kept["flops_per_step"]
    assert again["breakdown"]["mapped"]["activations"] < kept["breakdown"]["mapped"]["activations"]
    assert again["peak_anonymous_mb"] == kept["peak_anonymous_mb"]


@pytest.mark.slow
def test_room_for_results_follows_from_memory(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    tiny_config("llama", num_hidden_layers=8).save_pretrained(folder)
    shapes = {"max_length": 128, "batch_size": 16}
    nothing = _plan(folder, activation_cache_mb=0, **shapes)
    least = nothing["peak_rss_mb"]
    some, most, none = (
        _plan(folder, activation_cache_mb=0, ram_mb=least + more, **shapes)["kept"]
        for more in (20, 1000, -1)
    )
    assert none["activation_cache_mb"] == 0 and none["flops_per_step"] == nothing["flops_per_step"]
    assert (
        18
        <= some["activation_cache_mb"]
        <= 20
        < most["activation_cache_mb"]
        == most["keep_mb_of_all_layers"]
    )
    assert most["flops_per_step"] < some["flops_per_step"] < nothing["flops_per_step"]
    # A run that is told so takes as much.
    told = _plan(folder, activation_cache_mb=most["activation_cache_mb"], **shapes)
    assert told["flops_per_step"] == most["flops_per_step"]
    assert least < told["peak_rss_mb"] <= least + most["activation_cache_mb"]
    less = _plan(folder, activation_cache_mb=most["activation_cache_mb"] - 1, **shapes)
    assert less["flops_per_step"] > told["flops_per_step"]
    assert "kept" not in _plan(folder, target="ios-mlx", ram_mb=500)


@pytest.mark.parametrize("target", ["host", "ios-mlx"])
def test_queries_cost_two_forward_passes_each(llama: Path, target: str) -> None:
    given: dict[str, Any] = {"target": target, "weights": "fp32"}
    given |= {"labels": 32} if target == "ios-mlx" else {}
    one, four = (_plan(llama, "mezo", num_queries=q, **given) for q in (1, 4))
    together = _plan(llama, "prge", num_queries=4, **given)
    assert four["flops_per_step"] == 4 * one["flops_per_step"]
    assert together["flops_per_step"] == pytest.approx(four["flops_per_step"], rel=0.1)
    if target == "ios-mlx":
        programs = [p["breakdown"]["anonymous"]["programs"] for p in (one, together)]
        assert programs[1] > programs[0]
    gradients = _plan(llama, weights="fp32")
    assert one["flops_per_step"] < gradients["flops_per_step"] < 3 * one["flops_per_step"]


def _blank(folder: Path) -> Any:
    return models.blank(models.resolve(str(folder), weights=False)).model


def _sized(
    folder: Path, method: str, target: str = "host", **settings: str
) -> tuple[Plan, TrainingGraph]:
    planned = plan(method, target, {"batch_size": "1", "num_queries": "4", **settings})
    model = _blank(folder)
    length = graphs.capture_length(planned, model)
    assert length is not None
    captured = graphs.captured(planned, model, length, lambda *_: None)
    return planned, graphs.sized_graph(planned, model, captured, lambda *_: None)


@pytest.mark.parametrize(
    ("method", "given", "copies", "calls"),
    [
        ("senszoq", {"mask": "none"}, 8, 10),  # 8 copies of 80 entries, 64 in a call
        ("mezo", {}, 1, 16),  # 80 entries, 8 times
    ],
)
def test_stacked_copies_share_the_calls_of_the_head(
    method: str, given: dict[str, str], copies: int, calls: int, llama: Path
) -> None:
    planned, graph = _sized(llama, method, max_length="80", **given)
    assert (graph.copies, graph.rows, graph.label_rows) == (copies, copies, 64)
    moves_one = {name: Footprint(0, 0, int(name == "head")) for name in graph.programs}
    found = estimate(graph, moves_one, as_dict(planned.config), tokenizer=0, threads=1)
    assert found.moved == calls
    flops = {name: product_flops(program) for name, program in graph.programs.items()}
    layers = 8 // copies * (flops["embedding@80"] + 2 * flops["layer.0@80"])
    assert found.flops == layers + calls * flops["head"]


def test_rows_that_fill_up_a_call_of_the_head_are_no_operations(llama: Path) -> None:
    """Where the target's products leave them out."""
    planned, graph = _sized(llama, "mezo", max_length="80")
    flops = {name: product_flops(program) for name, program in graph.programs.items()}
    copies, entries = 8, 6

    def of(*, skips: bool) -> int:
        none = {name: Footprint(0, 0, 0, skips_zero_rows=skips) for name in graph.programs}
        settings = as_dict(planned.config)
        return estimate(graph, none, settings, tokenizer=0, threads=1, labels=entries).flops

    layers = copies * (flops["embedding@80"] + 2 * flops["layer.0@80"])
    assert of(skips=False) == layers + copies * flops["head"]
    assert of(skips=True) == layers + copies * flops["head"] * entries // graph.label_rows


def _compiling(folder: Path, method: str, target: str = "host", **given: str) -> dict[str, int]:
    planned, graph = _sized(folder, method, target, max_length="64", **given)
    captured = graphs.captured(planned, _blank(folder), 64, lambda *_: None)
    found = compiling(
        planned.target.lowering_memory,
        graph,
        captured,
        planned.config.weights,
        any_length=True,
        tokenizer=100,
    )
    assert found is not None
    return found


@pytest.mark.slow
def test_a_compile_takes_more_for_what_there_is_more_of(tmp_path: Path) -> None:
    sizes = {"vocab_size": 4096, "num_hidden_layers": 2, "hidden_size": 256}
    folders = {}
    for name, changes in {"small": {}, "deep": {"num_hidden_layers": 4}}.items():
        folders[name] = tmp_path / name
        tiny_config("llama", **sizes | changes).save_pretrained(folders[name])
    small, deep = (_compiling(folders[name], "senszoq", mask="none") for name in folders)
    assert deep["captured model"] > small["captured model"]
    assert deep["chosen weights"] > small["chosen weights"]
    # Layers of one shape are one program, written a few rows at a time.
    assert deep["programs"] == small["programs"]
    written = "weights being written"
    assert deep[written] == small[written] == 4096 * 256 * 4 + 43 * (1 << 18)
    assert (small["tokenizer"], small.keys()) == (1300, deep.keys())
    few = _compiling(folders["small"], "mezo")
    assert few["programs"] < small["programs"] and "chosen weights" not in few
    mlx = _compiling(folders["small"], "mezo", "ios-mlx", granularity="layer")
    assert mlx["programs"] < few["programs"]
    whole = _compiling(folders["deep"], "mezo", "ios-mlx")
    assert whole["model"] == 4 * sum(p.numel() for p in _blank(folders["deep"]).parameters())
    assert 0 < whole["packed weights"] < whole["model"]


def test_large_matrices_are_tried_and_read_in_pieces(tmp_path: Path) -> None:
    tiny_config("llama", num_hidden_layers=1, intermediate_size=1 << 18).save_pretrained(tmp_path)
    found = _compiling(tmp_path, "mezo")
    assert found["a stage being tried"] == 10_000_000 + 8 * 64 * (1 << 18)
    planned, graph = _sized(tmp_path, "mezo", max_length="64")
    captured = graphs.captured(planned, _blank(tmp_path), 64, lambda *_: None)
    memory = targets.get("host").lowering_memory
    fixed = compiling(memory, graph, captured, "int4", any_length=False, tokenizer=0)
    assert fixed is not None and fixed["weights being written"] == 4 * (1 << 23) + 43 * (1 << 18)


def test_a_target_that_was_not_measured_says_so(
    llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = ["plan", str(llama), "--target", "android-gpu", "--set", "max_length=32"]
    assert run(line) == 0
    assert "not known: compiles for android-gpu were not measured" in capfd.readouterr().out
    assert run([*line, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["compile_peak_anonymous_mb"] is None and "compile" not in found["breakdown"]


@pytest.mark.slow
def test_a_roomy_budget_takes_first_order(llama: Path) -> None:
    found = _plan(llama, budget_mb=1000)
    assert found["fits"] is True
    best, *others = found["options"]
    assert best["first_order"] and best["settings"] == {"max_length": 32, "batch_size": 1}
    assert best["peak_anonymous_mb"] == found["peak_anonymous_mb"]
    assert not any(other["first_order"] for other in others)
    assert {other["method"] for other in others} == {"prge", "mezo", "fzoo", "quzo", "spzo"}
    asked = _plan(llama, "prge", budget_mb=1000)
    assert asked["fits"] is True and asked["options"][0]["method"] == "mebp"
    assert "preferred" in asked["advice"] and "fewer steps" in asked["advice"]


@pytest.mark.slow
def test_what_does_not_fit_is_made_smaller(llama: Path) -> None:
    asked = {"max_length": 128, "batch_size": 32}
    needed = _plan(llama, **asked)["peak_anonymous_mb"]
    small = _plan(llama, max_length=128)["peak_anonymous_mb"]
    assert small < needed
    found = _plan(llama, budget_mb=(small + needed) / 2, **asked)
    assert found["fits"] is False
    assert found["options"][0]["settings"] == {"max_length": 128, "batch_size": 1}
    assert "--method mebp --set max_length=128 --set batch_size=1" in found["advice"]


@pytest.mark.slow
def test_nothing_that_fits_is_an_answer(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["plan", str(llama), "--target", "host", "--budget-mb", "1", "--json"]
    assert run([*line, *(f"--set={key}={value}" for key, value in SMALL.items())]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found.keys() == KEYS | {"options"}
    assert (found["fits"], found["options"]) == (False, [])
    assert "Nothing" in found["advice"]


def test_the_table_names_the_parts(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = ["plan", str(llama), "--target", "host", "--budget-mb", "100", "--set", "max_length=32"]
    assert run(line) == 0
    output, progress = capfd.readouterr()
    assert (
        "anonymous memory" in output
        and "on the machine that compiles" in output
        and "label rows" in output
        and "It fits" in output
    )
    assert "plan: capturing the model" in progress


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--set", "lora.rnk=8"], 2, "lora.r"),
        (["--set", "max_length=32", "--set", "lora.r=4096"], 2, "at most"),
        (["--budget-mb", "0"], 2, "--budget-mb"),
        (["--method", "adam"], 2, "adam"),
        (["--set", "max_length=4096"], 1, "128 positions"),
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


def test_memory_that_does_not_hold_the_weights(
    llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def planned(*more: str) -> dict[str, Any]:
        settings = [f"--set={key}={value}" for key, value in SMALL.items()]
        command = [
            "plan",
            str(llama),
            "--target",
            "host",
            "--method",
            "mebp",
            "--process",
            "runner",
        ]
        assert run([*command, *settings, *more, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    assert "from_disk_mb_per_step" not in planned()
    wide = planned("--ram", "1000", "--disk-mb-s", "100")
    assert (wide["from_disk_mb_per_step"], wide["disk_seconds_per_step"]) == (0, 0)
    tight = planned("--ram", "1", "--disk-mb-s", "100")
    assert tight["from_disk_mb_per_step"] > 0
    assert tight["disk_seconds_per_step"] == pytest.approx(
        tight["from_disk_mb_per_step"] / 100, abs=1e-3
    )
    assert planned("--ram", "1")["disk_seconds_per_step"] is None


@pytest.mark.parametrize(("method", "times"), [("prge", 1), ("mezo", 2 * 3)])
def test_a_whole_program_reads_its_weights_once_a_call(
    llama: Path, method: str, times: int
) -> None:
    """All copies pass the one program of ``prge`` together, and that of ``mezo`` one after another."""
    found = plan_training(
        str(llama),
        method=method,
        target="ios-mlx",
        settings={**SMALL, "num_queries": "3"},
        process="runner",
        ram_mb=1,
        progress=lambda *_: None,
    )
    weights = found["breakdown"]["mapped"]["weights"]
    assert found["from_disk_mb_per_step"] == pytest.approx(times * weights, abs=0.1 * times)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--disk-mb-s", "100"], "no --ram"),
        (["--ram", "0"], "a number above 0"),
        (["--ram", "100", "--disk-mb-s", "nan"], "a number above 0"),
    ],
)
def test_memory_and_disk_that_are_none(
    llama: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(llama), "--target", "host", *more]) != 0
    assert message in capsys.readouterr().err
