"""The stages of a hand-made split bundle, exported, against the same stages in Python."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from torch.fx.experimental.proxy_tensor import make_fx

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset, write_examples
from tests.support.split_bundles import SplitModel, run_program
from zoexport.core.native import runner_path
from zoexport.session import Session

SIZES: dict[str, Any] = {"lengths": (4, 8)}
DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bfloat16": torch.bfloat16,
}


def export(program: dict[str, Any]) -> Any:
    """A program as the manifest describes it; autograd's own operations are traced."""
    names = [value["name"] for value in program["inputs"]]
    outputs = [value["name"] for value in program["outputs"]]
    given = tuple(torch.zeros(v["shape"], dtype=DTYPES[v["dtype"]]) for v in program["inputs"])

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = run_program(program["family"], dict(zip(names, values, strict=True)), outputs)
        # An output that is an input would share its memory.
        return tuple(value.clone() for value in found)

    return torch.export.export(make_fx(function)(*given), given)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Any:
    drafted = split_bundles.write_bundle(tmp_path_factory.mktemp("split") / "draft", **SIZES)
    exported = {p["entry_point"]: export(p) for p in split_bundles.programs_of(drafted)}
    return to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))


@pytest.fixture(scope="module", params=[True, False], ids=["planned", "by pointer"])
def bundle(
    request: pytest.FixtureRequest, edge: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    planning = MemoryPlanningPass(alloc_graph_input=request.param, alloc_graph_output=request.param)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    program = bytes(copy.deepcopy(edge).to_executorch(config).buffer)
    folder = tmp_path_factory.mktemp("split") / "bundle"
    return split_bundles.write_bundle(folder, engine="executorch", program=program, **SIZES)


def test_runs_the_stages(bundle: Path) -> None:
    examples = bundles.text_examples()
    results = []
    for engine in (None, SplitModel()):
        with make_dataset(examples) as dataset, Session.open(bundle, engine=engine) as session:
            session.configure(learning_rate=1e-3)
            losses = [session.step(dataset, [i, i + 1, i + 2]).losses for i in range(4)]
            slot = np.frombuffer(session.read_slot("lora_B.1"), np.float32).copy()
            results.append((np.array(losses), slot, session.evaluate(dataset)))
    (losses, slot, found), (expected_losses, expected_slot, expected) = results
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(slot, expected_slot, atol=1e-3)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.token_accuracy == expected.token_accuracy


def test_the_runner_takes_the_settings_of_an_optimizer(bundle: Path, tmp_path: Path) -> None:
    examples = bundles.text_examples()
    path, state = write_examples(tmp_path / "examples.jsonl", examples), tmp_path / "state"
    settings = ("weight_decay=5", "max_grad_norm=0", "checkpoint_every=2", "momentum=0")
    options = [part for setting in settings for part in ("--set", setting)]
    command = ["train", "--bundle", bundle, "--examples", path, "--state", state, "--steps", "3"]
    line = [str(runner_path()), *map(str, command), *options]
    subprocess.run(line, capture_output=True, check=True)
    slots = []
    for values in ({}, {"weight_decay": 5.0, "max_grad_norm": 0.0, "checkpoint_every": 2}):
        with make_dataset(examples) as dataset, Session.open(bundle) as session:
            session.configure(**values)
            session.train(dataset, 3)
            slots.append(session.read_slot("lora_B.1"))
    with Session.open(bundle) as session:
        session.attach(state, read_only=True)
        found = session.read_slot("lora_B.1")
    assert found == slots[1] != slots[0]


def test_the_runner_says_what_each_length_cost(bundle: Path, tmp_path: Path) -> None:
    path = write_examples(tmp_path / "examples.jsonl", [([([1, 2, 3, 4], [2, 3, 4, 5])], 0)])
    arguments = ["--bundle", bundle, "--examples", path, "--state", tmp_path / "state"]
    found = subprocess.run(
        [str(runner_path()), "train", *map(str, arguments), "--steps", "2", "--json", "--timings"],
        capture_output=True,
        text=True,
        check=True,
    )
    costs = json.loads(found.stdout.splitlines()[-1])["programs"]
    # One row of four tokens: nothing ran for the other length.
    assert {name for name in costs if name.startswith("mix")} == {"mix.forward@4", "mix.backward@4"}
    # Two stages, two steps; the example is there twice, with eight labels in chunks of three.
    assert costs["mix.forward@4"]["calls"] == 4 and costs["head.backward"]["calls"] == 6
    assert "head.forward" not in costs and costs["mix.backward@4"]["load_seconds"] > 0
