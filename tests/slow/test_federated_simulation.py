"""Flower's simulation engine with many clients, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.federations import write_choices
from tests.support.verbs import verb
from zoexport.federated import models
from zoexport.federated.aggregate import Replayer
from zoexport.federated.protocol import Reply, Trajectory
from zoexport.federated.store import read_federation
from zoexport.federated.terms import Terms
from zoexport.session import Bundle, Session, no_programs

pytestmark = [pytest.mark.slow, pytest.mark.federation]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_choices(tmp_path_factory.mktemp("data") / "train.jsonl")


def test_a_hundred_clients_ten_a_round(compiler: Compiler, data: Path, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama", "prge", num_queries=2)
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
    bundle = compiler.bundle("llama", "prge", num_queries=2)
    state = tmp_path / "state"
    options = ("--clients", 20, "--sample", 20, "--steps", 2, "--state", state)
    replayer = Replayer(Bundle.open(bundle))
    before = models.initial(Bundle.open(bundle))
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
            with Session.open(bundle, engine=no_programs, verify=False) as session:
                session.attach(folder, read_only=True)
                for name, values in replayed.items():
                    assert session.read_slot(name).tobytes() == values.tobytes()
    # In the rounds between every client was synchronized, to the model that the server has.
    for path in sorted((state / "rounds").glob("*/synchronized.json")):
        assert json.loads(path.read_text())["synchronized"] == list(range(20))
