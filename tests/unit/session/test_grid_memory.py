"""What a session that trains integers holds in anonymous memory: no copy of them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support import grid_bundles
from tests.support.grid_bundles import LENGTHS, initial_values
from tests.support.grid_integers import TRAINED
from tests.support.sessions import make_dataset
from tests.unit.session.test_split_manifest import rewrite
from zoexport.session import Session, Tensor, memory_usage

#: Of each slot's integers.
SIDE = 4096
MEGABYTE = 1e6
SIZE = {"uint8": SIDE * SIDE // 2, "int8": SIDE * SIDE}
TOTAL = sum(SIZE[dtype] for _, dtype in TRAINED.values())
EXAMPLES: list[Any] = [([([1] * LENGTHS[-1], [2] * LENGTHS[-1])], 0)]


def write_bundle(folder: Path) -> Path:
    """A bundle of 32 MB of integers; its programs compute nothing."""
    grid_bundles.write_bundle(folder)
    shapes = {"uint8": (SIDE, SIDE // 2), "int8": (SIDE, SIDE)}
    integers = {name: np.full(shapes[dtype], 0x11, dtype) for name, (_, dtype) in TRAINED.items()}
    save_file({**initial_values(), **integers}, folder / "adapter.safetensors")

    def widen(manifest: dict[str, Any]) -> None:
        values = [v for program in manifest["programs"] for v in program["inputs"]]
        for value in [*manifest["state"], *values]:
            if value["dtype"] in shapes:
                value["shape"] = list(shapes[value["dtype"]])
        size = (folder / "adapter.safetensors").stat().st_size
        manifest["files"]["adapter.safetensors"]["bytes"] = size

    rewrite(folder, widen)
    return folder


def run(program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Reads every integer, and gives losses that differ."""
    for tensor in inputs.values():
        if tensor.name == "codes":
            np.asarray(tensor.data).sum()
    for tensor in outputs.values():
        place = ctypes.c_char.from_buffer(tensor.data.cast("B"))
        ctypes.memset(ctypes.addressof(place), 0x3C, tensor.data.nbytes)
    if "logprobs" in outputs:
        for i in range(len(outputs["logprobs"].data)):
            outputs["logprobs"].data[i] = -1 - i / 10


@pytest.mark.parametrize("with_state", [True, False])
def test_anonymous_memory(tmp_path: Path, with_state: bool) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    with (
        make_dataset(EXAMPLES) as dataset,
        Session.open(bundle, engine=run, verify=False) as session,
    ):
        session.evaluate(dataset)
        before = memory_usage()
        if with_state:
            session.attach(tmp_path / "state")
        session.configure(batch_size=1)
        session.train(dataset, 3)
        session.evaluate(dataset)
        after = memory_usage()
        assert any(session.record(1).gradients)
        if with_state:
            snapshot = tmp_path / "state" / "snapshot-2.safetensors"
            assert TOTAL <= snapshot.stat().st_size < TOTAL + 2000
    mapped = (after.rss_bytes - after.anonymous_bytes) - (before.rss_bytes - before.anonymous_bytes)
    # Two copies, of a byte for each integer or two of them.
    assert mapped > 1.9 * TOTAL > 60 * MEGABYTE
    assert after.anonymous_bytes - before.anonymous_bytes < 2 * MEGABYTE


@pytest.mark.parametrize("steps", [0, 2])
def test_evaluation_reads_the_bundles_own(tmp_path: Path, steps: int) -> None:
    """Where nothing was trained there are no copies at all."""
    bundle = write_bundle(tmp_path / "bundle")
    state = tmp_path / "state"
    with make_dataset(EXAMPLES) as dataset:
        if steps:
            with Session.open(bundle, engine=run, verify=False) as session:
                session.attach(state)
                session.train(dataset, steps)
        before = memory_usage()
        with Session.open(bundle, engine=run, verify=False) as session:
            if steps:
                session.attach(state, read_only=True)
            session.evaluate(dataset)
            after = memory_usage()
    mapped = (after.rss_bytes - after.anonymous_bytes) - (before.rss_bytes - before.anonymous_bytes)
    assert (mapped > 1.9 * TOTAL) == bool(steps) and mapped > 0.9 * TOTAL
    assert after.anonymous_bytes - before.anonymous_bytes < 2 * MEGABYTE
