"""Flower's simulation engine with many clients, through the command line; and the report's runner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.compiled import Compiler
from tests.support.verbs import verb
from zoexport.bench import federated_page
from zoexport.bench.federated import Arm, Scale, measure
from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.protocol import Reply, Trajectory
from zoexport.federated.store import read_federation
from zoexport.federated.terms import Terms
from zoexport.samples import Samples
from zoexport.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.federation]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    generator = np.random.default_rng(0)
    words = ["a", "film", "was", "long", "short", "it"]
    lines = [
        {
            "prompt": " ".join(generator.choice(words, 5)),
            "completion": end,
            "choices": [" good", " bad"],
        }
        for end in (" good", " bad")
        for _ in range(150)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_hundred_clients_ten_a_round(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama", "prge", queries=2)
    state, page = tmp_path / "state", tmp_path / "page"
    options = ("--clients", 100, "--sample", 10, "--rounds", 3, "--steps", 2)
    given = ("--split", "labels:0.5", "--test", data, "--state", state, "--report", page)
    result = verb("federate", "simulate", bundle, "--data", data, *options, *given)
    assert result["rounds"] == 3 and len(result["evaluations"]) == 3
    assert result["upload_largest"] <= 8 * 2 * 2 + 1000
    assert result["refused"] == 0 and result["flops"] > 0
    rounds = [
        json.loads(path.read_text()) for path in sorted((state / "rounds").glob("*/round.json"))
    ]
    assert all(len(found["clients"]) == 10 for found in rounds)
    asked = {client for found in rounds for client in found["clients"]}
    assert {int(path.name) for path in (state / "clients").iterdir()} == asked, (
        "who was not asked has done nothing"
    )
    assert (page / "federation.png").stat().st_size > 1000
    assert "labels" not in (page / "federation.md").read_text().split("## Terms")[0]
    # The same again, from the seed: as Flower's nodes have other numbers now, none of them may matter.
    again = verb("federate", "simulate", bundle, "--data", data, *options, "--split", "labels:0.5")
    assert again["digest"] == result["digest"] and again["state"] is None


def test_twenty_simulated_clients_are_replayed_bit_for_bit(
    compiler: Compiler, data: Path, tmp_path: Path
) -> None:
    """Ten rounds in Flower's engine; each client's own state folder against the replay of what it sent."""
    bundle = compiler.bundle("llama", "prge", queries=2)
    state = tmp_path / "state"
    options = ("--clients", 20, "--sample", 20, "--steps", 2, "--state", state)
    replayer = Replayer(bundle)
    before = models.initial(bundle)
    for number in (
        0,
        9,
    ):  # up to the first round, and on to the tenth: states are those of the last
        verb("federate", "simulate", bundle, "--data", data, *options, "--rounds", number + 1)
        content = dict(read_federation(state)["terms"])
        content.pop("sample")
        terms = Terms.of(content)
        if number:
            kept = (state / "models" / f"model-{number}.safetensors").read_bytes()
            before = models.unpack(kept, models.sizes_of(before), "")
        for client in range(20):
            reply = Reply.unpack(
                (state / "rounds" / f"{number:06d}" / f"reply-{client}.bin").read_bytes()
            )
            trajectory = Trajectory.unpack(reply.body, terms.steps, terms.scalars)
            seed = terms.client_seed(number, client)
            replayed = replayer.model(before, seed, trajectory, terms)
            (folder,) = (state / "clients" / str(client)).glob("round-*")
            with Session.open(bundle, engine=models.no_programs, verify=False) as session:
                session.attach(folder, read_only=True)
                for name, values in replayed.items():
                    assert session.read_slot(name).tobytes() == values.tobytes()
    # In the rounds between every client was synchronized, to the model that the server has.
    for path in sorted((state / "rounds").glob("*/synchronized.json")):
        assert json.loads(path.read_text())["synchronized"] == list(range(20))


def test_the_report_runs_arms_at_equal_operations(
    compiler: Compiler, data: Path, tmp_path: Path
) -> None:
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
    federated_page.write(page, results[-1])
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "| two " in text
    assert (tmp_path / "bench-federated" / "loss.png").stat().st_size > 1000
