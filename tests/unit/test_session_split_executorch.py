"""The stages of a hand-made split bundle, exported, against the same stages in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass

from tests.support import bundles, split_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import FUNCTIONS, SplitModel
from zoexport.session import Session

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bfloat16": torch.bfloat16,
}


class Stage(torch.nn.Module):
    """A kind of stage with its inputs in the manifest's order."""

    def __init__(self, kind: str, names: list[str]) -> None:
        super().__init__()
        self.kind, self.names = kind, names

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(self.names, values, strict=True))
        places = ("tokens", "x0", "x1", "labels")
        found = FUNCTIONS[self.kind](given, *(given[name] for name in places if name in given))
        # An output that is an input would share its memory.
        return tuple(value.clone() for value in found)


def export(program: dict[str, Any]) -> Any:
    inputs = program["inputs"]
    given = tuple(torch.zeros(v["shape"], dtype=DTYPES[v["dtype"]]) for v in inputs)
    stage = Stage(program["family"].split(".")[0], [v["name"] for v in inputs])
    return torch.export.export(stage, given)


@pytest.fixture(scope="module", params=[True, False], ids=["planned", "by pointer"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("split")
    drafted = split_bundles.write_bundle(folder / "draft", method="prge")
    lowered = to_edge(
        {p["method"]: export(p) for p in split_bundles.programs_of(drafted)},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(
                alloc_graph_input=request.param, alloc_graph_output=request.param
            )
        )
    )
    return split_bundles.write_bundle(
        folder / "bundle", method="prge", engine="executorch", program=bytes(lowered.buffer)
    )


def test_runs_the_stages(bundle: Path) -> None:
    examples = bundles.text_examples()
    results = []
    for engine in (None, SplitModel()):
        with make_dataset(examples) as dataset, Session.open(bundle, engine=engine) as session:
            session.configure(lr=1e-3)
            losses = [session.step(dataset, [i, i + 1, i + 2]).losses for i in range(4)]
            slot = np.frombuffer(session.read_slot("lora_B.1"), np.float32).copy()
            results.append((np.array(losses), slot, session.evaluate(dataset)))
    (losses, slot, found), (expected_losses, expected_slot, expected) = results
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(slot, expected_slot, atol=1e-3)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.token_accuracy == expected.token_accuracy
