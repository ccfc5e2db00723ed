"""Packed weights in a file: the same bits as without one, and a file that cannot be used never stands in the way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import bundles
from tests.support.compiled import Compiler, compile_tiny
from tests.support.sessions import make_dataset
from tests.support.tiers import slow_after
from tests.support.tiny_models import save_tiny
from zoexport.session import Bundle, Info, Session
from zoexport.targets.executorch.xnnpack.lower import has_distinct_weights

pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[2]
Result = tuple[list[float], float, bytes]


def run(bundle: Path, cache: Path | str | None) -> tuple[Result, Info]:
    """Four steps and an evaluation: both programs, so that neither's weights are missing from a file."""
    with (
        make_dataset(bundles.text_examples()) as dataset,
        Session.open(bundle, cache=cache) as session,
    ):
        session.train(dataset, 4)
        slot = next(slot.name for slot in session.slots() if slot.role == "trainable")
        losses = [session.record(step).loss for step in range(4)]
        result = losses, session.evaluate(dataset).loss, session.read_slot(slot).tobytes()
        return result, session.info


@pytest.fixture(scope="module", params=slow_after(1, ["int4", "int8", "fp32"]))
def bundle(request: pytest.FixtureRequest, compiler: Compiler) -> Path:
    activations = "fp32" if request.param == "fp32" else "int8"
    return compiler.bundle("llama", weights=request.param, activations=activations)


def test_the_same_bits_from_a_file(bundle: Path, tmp_path: Path) -> None:
    private, info = run(bundle, "")
    assert (info.packed_weights, info.packed_problem) == ("", "")
    stamps = set()
    for _ in range(3):
        result, info = run(bundle, tmp_path)
        assert result == private
        assert Path(info.packed_weights).parent == tmp_path and not info.packed_problem
        stamps.add(Path(info.packed_weights).stat().st_ctime_ns)
    # Using it does not write to it, or another start would have to read it.
    assert len(stamps) == 1 and len(list(tmp_path.iterdir())) == 2


def test_a_damaged_file_is_remade(bundle: Path, tmp_path: Path) -> None:
    private, _ = run(bundle, "")
    _, info = run(bundle, tmp_path)
    path = Path(info.packed_weights)
    made = path.read_bytes()
    for damaged in (
        made[: len(made) // 2],
        b"",
        made[:-1] + bytes([made[-1] ^ 1]),
        bytes(byte ^ 255 for byte in made[:4096]) + made[4096:],
    ):
        path.write_bytes(damaged)
        result, info = run(bundle, tmp_path)
        assert result == private and Path(info.packed_weights) == path and not info.packed_problem
        assert len(path.read_bytes()) == len(made)


def test_what_cannot_hold_it_is_said(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    private, _ = run(bundle, "")
    (tmp_path / "file").write_text("")
    for folder, reason in (
        (tmp_path / "file" / "packed", "Not a directory|not a folder"),
        (tmp_path / ("a" * 200) / ("b" * 100), r"a path of \d+ bytes"),
        (Path("/proc/zoexport"), "No such file"),
    ):
        result, info = run(bundle, folder)
        assert result == private and info.packed_weights == ""
        assert re.search(reason, info.packed_problem), info.packed_problem
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_sessions_of_many_processes_share_it(bundle: Path, tmp_path: Path) -> None:
    private, _ = run(bundle, "")
    code = (
        "from pathlib import Path; from tests.parity.test_packed_weights import run; import sys\n"
        f"found, info = run(Path({str(bundle)!r}), {str(tmp_path / 'packed')!r})\n"
        "print(repr(found)); print(repr(info.packed_problem)); sys.stdin.read()"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == f"{private!r}\n"
        assert child.stdout.readline() == "''\n"
    # They all ran with the file, and two sessions of this process do beside them.
    with (
        Session.open(bundle, cache=tmp_path / "packed") as other,
        make_dataset(bundles.text_examples()) as dataset,
    ):
        other.train(dataset, 1)
        result, info = run(bundle, tmp_path / "packed")
        assert result == private and not info.packed_problem and not other.info.packed_problem
    assert all(child.communicate("")[0] == "" and child.returncode == 0 for child in children)
    assert len(list((tmp_path / "packed").iterdir())) == 2


def test_equal_codes_with_other_scales_are_not_kept(tmp_path: Path) -> None:
    """ExecuTorch's file knows a weight by its codes, so a layer that is another one doubled would become that one."""
    model = save_tiny("llama", tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    for name in list(tensors):
        if "layers.0." in name and "norm" not in name:
            tensors[name.replace("layers.0.", "layers.1.")] = (2 * tensors[name]).contiguous()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    bundle = tmp_path / "bundle"
    compile_tiny(model, bundle, weights="int8", activations="int8")
    assert Bundle.open(bundle).manifest["distinct_weights"] is False
    private, _ = run(bundle, "")
    result, info = run(bundle, tmp_path)
    assert result == private and "distinct_weights" in info.packed_problem


def test_distinct_weights() -> None:
    def weights(*pairs: tuple[int, float], dtype: Any = torch.int8) -> dict[str, torch.Tensor]:
        named = {}
        for number, (code, scale) in enumerate(pairs):
            named[f"w{number}.codes"] = torch.full((4, 4), code, dtype=dtype)
            named[f"w{number}.scales"] = torch.full((4,), scale, dtype=torch.bfloat16)
        return {**named, "norm": torch.ones(4)}

    assert has_distinct_weights(weights((1, 1.0), (2, 1.0), (1, 1.0)))
    assert not has_distinct_weights(weights((1, 1.0), (2, 1.0), (1, 2.0)))
    assert has_distinct_weights(
        weights((1, 1.0), (1, 2.0), dtype=torch.uint8)
    )  # int4, which is not packed
