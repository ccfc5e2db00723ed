"""Programs that perturb, with inputs of float16 and int32, on the engines themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge

from tests.support import bundles, stacked_bundles
from tests.support.sessions import make_dataset
from tests.support.split_bundles import programs_of
from tests.support.stacked_bundles import (
    ENTRIES,
    HIDDEN,
    QUERIES,
    SHIFT,
    TRAINED,
    VALUES,
    StackedModel,
    run_program,
)
from zoexport.session import Session

EXAMPLES = bundles.text_examples()
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
}


def export(program: dict[str, Any]) -> Any:
    """A program as the manifest describes it."""
    names = [value["name"] for value in program["inputs"]]
    given = tuple(torch.zeros(v["shape"], dtype=DTYPES[v["dtype"]]) for v in program["inputs"])

    class Program(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            family = program["name"].split("@")[0]
            return tuple(run_program(family, dict(zip(names, values, strict=True))))

    return torch.export.export(Program(), given)


def mlx_program(**v: Any) -> list[Any]:
    """The same programs in MLX, distinguished by their inputs."""
    if "tokens" in v:
        return [v["weight"][v["tokens"]]]
    if "labels" in v:
        logits = v["x"] @ v["weight"] + v["bias"].astype(mx.float32)
        found = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        picked = mx.take_along_axis(found, v["labels"][:, None], axis=1)[:, 0]
        return [picked, (mx.argmax(logits, axis=-1) == v["labels"]).astype(mx.float32)]
    if "gradients" in v:
        made = []
        for name in TRAINED:
            g, z = v["gradients"], v[f"previous_noise.{name}"]
            moved = v[name].astype(mx.float32) - v["rate"] / QUERIES * (g[0] * z[0] + g[1] * z[1])
            made.append(moved.astype(v[name].dtype))
        return made
    signs = mx.array([1.0, -1.0] * QUERIES) * v["epsilon"]
    values, shift = (
        v[local].astype(mx.float32) + signs[:, None] * mx.repeat(v[f"noise.{name}"], 2, axis=0)
        for local, name in (("values", VALUES), ("shift", SHIFT))
    )
    copies, length = 2 * QUERIES, v["x"].shape[1]
    flat = mx.broadcast_to(v["weight"].reshape(1, -1), (copies, HIDDEN * HIDDEN))
    places = mx.broadcast_to(v["places"][None], (copies, ENTRIES))
    weight = mx.put_along_axis(flat, places, values[:, v["entries"]], axis=1)
    mean = mx.cumsum(v["x"], axis=1) / mx.arange(1, length + 1)[:, None]
    product = mean.reshape(copies, -1, HIDDEN) @ weight.reshape(copies, HIDDEN, HIDDEN)
    return [v["x"] + mx.tanh(product + shift[:, None]).reshape(v["x"].shape)]


def executorch_file(_path: Path, programs: list[dict[str, Any]]) -> bytes:
    edge = to_edge(
        {p["entry_point"]: export(p) for p in programs},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    return bytes(edge.to_executorch().buffer)


def mlx_file(path: Path, programs: list[dict[str, Any]]) -> bytes:
    with mx.exporter(str(path), mlx_program) as trace:
        for program in programs:
            trace(
                **{
                    v["name"]: mx.zeros(v["shape"], getattr(mx, v["dtype"]))
                    for v in program["inputs"]
                }
            )
    return path.read_bytes()


@pytest.mark.parametrize(("engine", "write"), [("executorch", executorch_file), ("mlx", mlx_file)])
def test_engines_run_them(
    tmp_path: Path, engine: str, write: Callable[[Path, list[dict[str, Any]]], bytes]
) -> None:
    kinds: dict[str, Any] = {"noise_given": True, "update_program": True}
    drafted = stacked_bundles.write_bundle(tmp_path / "draft", **kinds)
    program = write(tmp_path / "program.mlxfn", programs_of(drafted))
    bundle = stacked_bundles.write_bundle(
        tmp_path / "bundle", engine=engine, program=program, **kinds
    )
    results = []
    for host in (None, StackedModel()):
        with make_dataset(EXAMPLES) as dataset, Session.open(bundle, engine=host) as session:
            losses = [session.step(dataset, [i, i + 1, i + 2]).losses for i in range(4)]
            values = np.frombuffer(session.read_slot(VALUES), np.float32).copy()
            results.append((np.array(losses), values, session.evaluate(dataset)))
    (losses, values, found), (expected_losses, expected_values, expected) = results
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(values, expected_values, atol=2e-3)
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.token_accuracy == expected.token_accuracy
