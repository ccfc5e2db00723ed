"""A trained adapter as a GGUF file, and back; what llama.cpp makes of it is in tests/slow/test_llama_cpp.py."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.tiny_models import fixed_tokens
from tests.support.verbs import run
from zoexport.api import Bundle
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
LORA = {"weights": "int4", "lora__target_modules": "all-linear", "lora__alpha": 6}


def _trained(bundle: Path, state: Path) -> float:
    with Session.open(bundle) as session, Dataset() as data:
        session.attach(state)
        for row in fixed_tokens(3, 20).tolist():
            data.add([(row[:-1], row[1:])], 0)
        for _ in range(3):
            session.step(data, [0, 1, 2])
        session.save()
        return session.evaluate(data).loss


def _slots(bundle: Path, state: Path) -> dict[str, bytes]:
    with Session.open(bundle) as session:
        session.attach(state, read_only=True)
        return {slot.name: bytes(session.read_slot(slot.name)) for slot in session.slots()}


@pytest.mark.parametrize(
    ("name", "method", "target"),
    [
        ("llama_tied", "mebp", "host"),
        pytest.param("gpt_neox", "mebp", "host", marks=pytest.mark.slow),
        pytest.param("gpt2", "prge", "host", marks=pytest.mark.slow),
        pytest.param("mistral", "mebp", "ios-mlx", marks=pytest.mark.slow),
    ],
)
def test_what_left_comes_back(
    compiler: Compiler, tmp_path: Path, name: str, method: str, target: str
) -> None:
    bundle = compiler.bundle(name, method, target, **LORA)
    _trained(bundle, tmp_path / "state")
    file = tmp_path / "adapter.gguf"
    found = (
        Bundle.open(bundle).export_adapter(file, state=tmp_path / "state", format="gguf").as_dict()
    )
    assert (found["format"], found["bytes"]) == ("gguf", file.stat().st_size)
    again = (
        Bundle.open(bundle).import_adapter(file, format="gguf", state=tmp_path / "again").as_dict()
    )
    assert again == {
        "state": str(tmp_path / "again"),
        "format": "gguf",
        "tensors": found["tensors"],
    }
    assert _slots(bundle, tmp_path / "again") == _slots(bundle, tmp_path / "state")
    assert gguf.GGUFReader(file).fields["adapter.lora.alpha"].contents() == 6


@pytest.mark.slow
def test_quantized_adapters_leave_as_what_they_stand_for(
    compiler: Compiler, tmp_path: Path
) -> None:
    bundle = compiler.bundle("llama_tied", "quzo", weights="int4", train="lora")
    files = [tmp_path / "adapter.gguf", tmp_path / "peft"]
    for kind, file in zip(("gguf", "peft"), files, strict=True):
        Bundle.open(bundle).export_adapter(file, format=kind)
    theirs = load_file(files[1] / "adapter_model.safetensors")
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(files[0]).tensors}
    name = "base_model.model.model.layers.1.self_attn.v_proj.lora_{}.weight"
    for half in "AB":
        ours = tensors[f"blk.1.attn_v.weight.lora_{half.lower()}"]
        np.testing.assert_array_equal(ours, theirs[name.format(half)])


@pytest.mark.parametrize(("outtype", "bound"), [("f16", 1e-3), ("q8_0", 1e-2)])
def test_fewer_bits(compiler: Compiler, tmp_path: Path, outtype: str, bound: float) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    _trained(bundle, tmp_path / "state")
    file = tmp_path / "adapter.gguf"
    where = {"state": tmp_path / "state", "outtype": outtype}
    Bundle.open(bundle).export_adapter(file, format="gguf", **where)
    Bundle.open(bundle).import_adapter(file, format="gguf", state=tmp_path / "again")
    before, after = (_slots(bundle, tmp_path / name) for name in ("state", "again"))
    errors = []
    for name, content in before.items():
        ours, theirs = np.frombuffer(content, np.float32), np.frombuffer(after[name], np.float32)
        errors.append(np.linalg.norm(ours - theirs) / max(float(np.linalg.norm(ours)), 1e-9))
    assert 0 < max(errors) < bound


def test_the_command_line(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    file = tmp_path / "adapter.gguf"
    done = run("adapter", "export", bundle, "--format", "gguf", "--outtype", "q8_0", "-o", file)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == {
        "adapter": str(file),
        "format": "gguf",
        "steps": 0,
        "tensors": 28,
        "bytes": file.stat().st_size,
    }
    done = run(
        "adapter", "import", bundle, "-i", file, "--format", "gguf", "--state", tmp_path / "again"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == 28


def test_a_failed_verb_writes_nothing(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama_tied", "mebp", **LORA)
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="already there"):
        Bundle.open(bundle).export_adapter(file, format="gguf")
    with pytest.raises(StateError, match="ends too early"):
        Bundle.open(bundle).import_adapter(file, format="gguf", state=tmp_path / "s")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]
