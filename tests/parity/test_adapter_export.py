"""An adapter that the session writes is the one that ``adapter export`` makes of the same state, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.tiny_models import fixed_tokens
from zoexport.api import Bundle
from zoexport.core import manifest as manifests
from zoexport.core.errors import BundleError, ConfigError, ZoExportError
from zoexport.core.native import runner_path
from zoexport.session import Dataset, Session, no_programs

pytestmark = pytest.mark.parity
LORA: dict[str, Any] = {"weights": "int4", "lora__target_modules": "all-linear", "lora__alpha": 6}
KINDS = [("peft", "f32"), ("gguf", "f32"), ("gguf", "f16"), ("gguf", "q8_0")]


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama_tied", "mebp", **LORA)


def content(path: Path) -> dict[str, bytes]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return {file.name if path.is_dir() else "file": file.read_bytes() for file in files}


def trained(bundle: Path, state: Path, output: Path) -> dict[str, bytes]:
    """A state of three steps, and PEFT's files as the session that trains writes them."""
    with Session.open(bundle) as session, Dataset() as data:
        session.attach(state)
        for row in fixed_tokens(3, 20).tolist():
            data.add([(row[:-1], row[1:])], 0)
        for _ in range(3):
            session.step(data, [0, 1, 2])
        session.export_adapter(output)
        session.save()
    return content(output)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("llama_tied", "mebp", {}),
        ("llama_tied", "prge", {}),
        pytest.param("gpt2", "prge", {}, marks=pytest.mark.slow),
        pytest.param("falcon", "mebp", {"weights": "fp32"}, marks=pytest.mark.slow),
        pytest.param("gpt_neox", "mezo", {}, marks=pytest.mark.slow),
    ],
)
def test_the_files_of_adapter_export(
    compiler: Compiler,
    tmp_path: Path,
    name: str,
    method: str,
    settings: dict[str, Any],
) -> None:
    """The pending update applied, while it trains and of a state that is only read."""
    bundle = compiler.bundle(name, method, **LORA | settings)
    state = tmp_path / "state"
    while_training = trained(bundle, state, tmp_path / "training")
    for kind, outtype in KINDS:
        expected, found = tmp_path / f"expected-{kind}-{outtype}", tmp_path / f"{kind}-{outtype}"
        chosen = None if kind == "peft" else outtype
        Bundle.open(bundle).export_adapter(expected, state=state, format=kind, outtype=chosen)
        with Session.open(bundle, engine=no_programs) as session:
            session.attach(state, read_only=True)
            session.export_adapter(found, kind, outtype=outtype)
        assert content(found) == content(expected)
        if kind == "peft":
            assert content(found) == while_training
    described = tmp_path / "peft-f32" / "adapter_config.json"
    assert described.read_bytes() == (bundle / "adapter_config.json").read_bytes()
    with Session.open(bundle, engine=no_programs) as session:  # what the bundle was compiled with
        session.export_adapter(tmp_path / "initial")
    assert content(tmp_path / "initial") != while_training


def test_the_runner_writes_the_same(bundle: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    trained(bundle, state, tmp_path / "training")
    for kind, outtype in KINDS:
        expected, found = tmp_path / f"expected-{kind}-{outtype}", tmp_path / f"{kind}-{outtype}"
        with Session.open(bundle, engine=no_programs) as session:
            session.attach(state, read_only=True)
            session.export_adapter(expected, kind, outtype=outtype)
        chosen = ["--format", kind, "--outtype", outtype, "-o", found]
        done = runner("--bundle", bundle, "--state", state, *chosen, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"adapter": str(found), "format": kind, "steps": 3}
        assert content(found) == content(expected)
    again = ["--bundle", bundle, "--output", tmp_path / "peft-f32"]
    done = runner(*again)
    assert done.returncode == 2 and "found something that is already there" in done.stderr
    assert runner(*again, "--force").returncode == 0
    for wrong, part in (
        (["--bundle", bundle], "option --output: found nothing"),
        ([*again, "--format", "mlx"], "'mlx'; expected peft or gguf"),
        ([*again, "--outtype", "q4_0"], "'q4_0'; expected f32, f16 or q8_0"),
        ([*again, "--force", "--outtype", "f16"], "PEFT's form has one type"),
    ):
        done = runner(*wrong)
        assert done.returncode == 2 and part in done.stderr


def runner(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [runner_path(), "export", *arguments]
    return subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=120)


def changed(bundle: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A bundle whose manifest says something else of its model."""
    shutil.copytree(bundle, folder)
    found = json.loads((folder / "manifest.json").read_text())
    del found["bundle_id"]
    change(found["model"])
    found["bundle_id"] = manifests.bundle_id(found)
    (folder / "manifest.json").write_text(json.dumps(found))
    return folder


MODULE = "model.layers.1.self_attn.q_proj"


def test_the_manifest_names_the_layers(bundle: Path) -> None:
    found = json.loads((bundle / "manifest.json").read_text())["model"]["llama_cpp"]
    assert found["architecture"] == "llama" and len(found["layers"]) == 14
    assert found["layers"][MODULE] == {"weight": "blk.1.attn_q.weight", "order": {"pairs": 4}}
    assert found["layers"]["model.layers.0.mlp.up_proj"] == {"weight": "blk.0.ffn_up.weight"}


def test_a_model_that_llama_cpp_does_not_run(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("opt", "prge", weights="fp32")
    with Session.open(bundle, engine=no_programs) as session:
        with pytest.raises(BundleError, match=r"a bundle of OPTForCausalLM.*PEFT's form"):
            session.export_adapter(tmp_path / "a.gguf", "gguf")
        session.export_adapter(tmp_path / "peft")
    with pytest.raises(ConfigError, match=r"OPTForCausalLM.*format=.merged"):
        Bundle.open(bundle).export_adapter(tmp_path / "a.gguf", format="gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: layers.pop(MODULE), f"no name.*{MODULE}"),
        (lambda layers: layers[MODULE].update(order={"pairs": 7}), "64 outputs"),
        (lambda layers: layers[MODULE].update(order={"groups": 1, "width": 33}), "64 outputs"),
        (lambda layers: layers[MODULE].update(order={"pairs": 0}), "pairs"),
        (lambda layers: layers[MODULE].update(order={"groups": 1}), "width"),
        (lambda layers: layers[MODULE].update(order=[4]), "order"),
        (lambda layers: layers[MODULE].update(weight="blk.1.attn_v.weight"), "attn_v.weight"),
        (lambda layers: layers[MODULE].pop("weight"), "weight"),
    ],
)
def test_names_that_do_not_fit(
    bundle: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    """One message of the session and one of Python, and no file."""
    bad = changed(bundle, tmp_path / "bad", lambda model: change(model["llama_cpp"]["layers"]))
    file = tmp_path / "a.gguf"
    with (
        pytest.raises(ZoExportError, match=message),
        Session.open(bad, engine=no_programs) as session,
    ):
        session.export_adapter(file, "gguf")
    with pytest.raises(ZoExportError, match=message):
        Bundle.open(bad).export_adapter(file, format="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


@pytest.mark.parametrize(
    ("name", "method", "settings", "message"),
    [
        ("llama", "quzo", {"weights": "int4"}, "trains no adapter of PEFT's"),
        ("llama", "quzo", {"weights": "int4", "train": "lora"}, "no half of an adapter of floats"),
    ],
)
def test_what_trains_no_adapter_of_floats(
    compiler: Compiler, tmp_path: Path, name: str, method: str, settings: Any, message: str
) -> None:
    bundle = compiler.bundle(name, method, **settings)
    for kind in ("peft", "gguf"):
        with (
            Session.open(bundle, engine=no_programs) as session,
            pytest.raises(ConfigError, match=message),
        ):
            session.export_adapter(tmp_path / "out", kind)
    assert list(tmp_path.iterdir()) == []


def test_what_the_call_refuses(bundle: Path, tmp_path: Path) -> None:
    with Session.open(bundle, engine=no_programs) as session:
        for arguments, message in (
            (("mlx",), "'mlx'; expected peft or gguf"),
            (("gguf", {"outtype": "q4"}), "'q4'; expected f32, f16 or q8_0"),
            (("peft", {"outtype": "f16"}), "PEFT's form has one type"),
        ):
            kind, *options = arguments
            with pytest.raises(ConfigError, match=message):
                session.export_adapter(tmp_path / "out", kind, **(options[0] if options else {}))
        (tmp_path / "out").write_text("mine")
        with pytest.raises(ConfigError, match="already there"):
            session.export_adapter(tmp_path / "out", "gguf")
        assert (tmp_path / "out").read_text() == "mine"
    with pytest.raises(ZoExportError, match="closed"):
        session.export_adapter(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
