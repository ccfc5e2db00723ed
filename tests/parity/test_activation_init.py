"""lora.init_weights=activations: bundles train as their references do from the same A, and say where A comes from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

import zoexport
from tests.support.compiled import SEQ, Compiler
from tests.support.tiers import slow_after
from tests.support.tiny_models import fixed_tokens, tiny
from tests.support.verbs import verb
from zoexport import calibration, models
from zoexport.compiler.directions import measure
from zoexport.compiler.plan import plan
from zoexport.core.errors import ConfigError, DataError
from zoexport.core.files import sha256
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
RANK = 5
SETTINGS: dict[str, Any] = {
    "max_length": SEQ,
    "batch_size": 3,
    "weights": "fp32",
    "generate": False,
}
INIT: dict[str, Any] = {
    "lora_r": RANK,
    "lora_target_modules": "all-linear",
    "lora_init_weights": "activations",
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama_tied", "prge", {}),
    ("llama_tied", "prge", {"weights": "int4"}),
    ("gpt_neox", "mebp", {}),
    ("roberta", "prge", {}),
    ("llama_tied", "quzo", {"train": "lora", "weights": "int4"}),
    ("llama_tied", "mezo", {}),
    ("qwen2", "fzoo", {}),
    ("gpt2", "spzo", {}),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of which the first rows are calibrated on."""
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [
        {
            "prompt": f"Film number {number} is a warm and funny story. It was",
            "completion": " great",
        }
        for number in range(5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def masked_text(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """The same with a mask, of two lengths."""
    path = tmp_path_factory.mktemp("text") / "masked.jsonl"
    words = text.read_text("utf-8").replace("It was", "It was <mask>.")
    path.write_text(words.replace("a warm and funny", "a", 2), "utf-8")
    return path


def plain(*arguments: object) -> list[str]:
    """The lines that a verb prints for people."""
    line = [sys.executable, "-m", "zoexport", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(("name", "method", "more"), slow_after(4, CASES))
def test_trains_as_the_reference_does(
    compiler: Compiler,
    name: str,
    method: str,
    more: dict[str, Any],
    text: Path,
    masked_text: Path,
    tmp_path: Path,
) -> None:
    data = masked_text if name == "roberta" else text
    bundle = zoexport.compile(
        compiler.model(name),
        method=method,
        output=tmp_path / "bundle",
        calibration=data,
        settings={**SETTINGS, **INIT, **more},
    )
    found = bundle.parity(steps=3)
    assert found.passed, found
    if method == "quzo":
        return
    loaded = models.load(models.resolve(str(compiler.model(name))))
    ranks = dict.fromkeys(models.adapter_targets(loaded.model, "all-linear"), RANK)
    rows = calibration.calibration_rows(loaded, SEQ, data)
    initial = load_file(bundle.path / "adapter.safetensors")
    for module, a in measure(loaded, ranks, rows, seed=0).items():
        torch.testing.assert_close(initial[f"lora_A.{module}"], a)
        assert not initial[f"lora_B.{module}"].any()


def test_integers_of_quantized_adapters_stand_for_the_directions(
    compiler: Compiler, text: Path, tmp_path: Path
) -> None:
    """Each column of A has its scale, so that rounding moves it by half of that at most."""
    bundle = zoexport.compile(
        compiler.model("llama_tied"),
        method="quzo",
        output=tmp_path / "bundle",
        calibration=text,
        settings={**SETTINGS, **INIT, "train": "lora", "weights": "int4"},
    )
    bundle.export_adapter(tmp_path / "adapter")
    exported = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    loaded = models.load(models.resolve(str(compiler.model("llama_tied"))))
    ranks = dict.fromkeys(models.adapter_targets(loaded.model, "all-linear"), RANK)
    rows = calibration.calibration_rows(loaded, SEQ, text)
    for module, a in measure(loaded, ranks, rows, seed=0).items():
        found = exported[f"base_model.model.{module}.lora_A.weight"].T
        step = a.abs().amax(0) / 127
        assert ((found - a).abs() <= 0.51 * step).all(), module


def test_the_bundle_says_where_a_comes_from(compiler: Compiler, text: Path, tmp_path: Path) -> None:
    ids = []
    for place in ("first", "second"):
        bundle = zoexport.compile(
            compiler.model("llama_tied"),
            method="prge",
            output=tmp_path / place,
            calibration=text,
            settings={**SETTINGS, **INIT},
        )
        ids.append(bundle.manifest["bundle_id"])
    assert ids[0] == ids[1]
    made = bundle.manifest["lora_init_weights"]
    assert made["text"] == {"name": "text.jsonl", "sha256": sha256(text)}
    assert made["rows"] == 5 and 5 * 10 < made["tokens"] <= 5 * SEQ
    shown = verb("inspect", bundle.path)
    assert shown["lora_init_weights"] == made
    lines = [line for line in plain("inspect", bundle.path) if "directions of activations" in line]
    assert len(lines) == 1 and f"text.jsonl ({sha256(text)[:12]}), 5 rows" in lines[0]
    drawn = verb("inspect", compiler.bundle("llama_tied"))
    assert drawn["lora_init_weights"] is None
    assert "lora_init_weights" not in zoexport.Bundle.open(compiler.bundle("llama_tied")).manifest


def test_what_leaves_has_a_and_comes_back(compiler: Compiler, text: Path, tmp_path: Path) -> None:
    """A stays as it was measured while B is trained, in PEFT's format and in llama.cpp's."""
    bundle = zoexport.compile(
        compiler.model("llama_tied"),
        method="prge",
        output=tmp_path / "bundle",
        calibration=text,
        settings={**SETTINGS, **INIT},
    )
    with Session.open(bundle.path) as session, Dataset() as data:
        session.attach(tmp_path / "state")
        for row in fixed_tokens(3, SEQ).tolist():
            data.add([(row[:-1], row[1:])], 0)
        for _ in range(3):
            session.step(data, [0, 1, 2])
        session.save()
        loss = session.evaluate(data).loss
    initial = load_file(bundle.path / "adapter.safetensors")

    bundle.export_adapter(tmp_path / "adapter", state=tmp_path / "state")
    exported = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    peft: Any = PeftModel.from_pretrained(tiny("llama_tied"), str(tmp_path / "adapter"))
    tokens = fixed_tokens(3, SEQ)
    with torch.no_grad():
        theirs = float(peft.eval()(input_ids=tokens, labels=tokens, use_cache=False).loss)
    assert theirs == pytest.approx(loss, abs=2e-5)

    bundle.export_adapter(tmp_path / "adapter.gguf", state=tmp_path / "state", format="gguf")
    file = gguf.GGUFReader(tmp_path / "adapter.gguf")
    held = {t.name: torch.from_numpy(t.data.copy()) for t in file.tensors}
    modules = [name.removeprefix("lora_A.") for name in initial if name.startswith("lora_A.")]
    for module in modules:
        a = initial[f"lora_A.{module}"]
        assert torch.equal(exported[f"base_model.model.{module}.lora_A.weight"], a.T)
    # Unpermuted, as llama.cpp has the inputs of every layer.
    down = initial["lora_A.model.layers.1.mlp.down_proj"].T
    assert torch.equal(held["blk.1.ffn_down.weight.lora_a"].view(down.shape), down)

    for kind, path in (("peft", "adapter"), ("gguf", "adapter.gguf")):
        bundle.import_adapter(tmp_path / path, state=tmp_path / kind, format=kind)
        with Session.open(bundle.path) as session, Dataset() as data:
            session.attach(tmp_path / kind)
            for row in fixed_tokens(3, SEQ).tolist():
                data.add([(row[:-1], row[1:])], 0)
            assert session.evaluate(data).loss == pytest.approx(loss, abs=1e-6)


def test_programs_that_generate_have_the_same_quantized_adapters(
    compiler: Compiler, text: Path, tmp_path: Path
) -> None:
    settings = {**SETTINGS, **INIT, "train": "lora", "weights": "int8", "generate": True}
    bundle = zoexport.compile(
        compiler.model("llama_tied"),
        method="quzo",
        output=tmp_path / "bundle",
        calibration=text,
        settings={**settings, "generate.context": 64},
    )
    assert bundle.generate("The film is", max_new_tokens=4).tokens


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "train"), [("spzo", "full"), ("quzo", "full")])
def test_methods_without_adapters_are_refused(method: str, train: str) -> None:
    with pytest.raises(ConfigError, match=r"lora\.init_weights=activations.*trains no adapters"):
        plan(method, "host", {"lora.init_weights": "activations", "train": train})


def test_an_adapter_to_start_from_is_refused(compiler: Compiler, tmp_path: Path) -> None:
    model = compiler.model("llama_tied")
    start = zoexport.Bundle.open(compiler.bundle("llama_tied", "mebp"))
    start.export_adapter(tmp_path / "adapter")
    with pytest.raises(ConfigError, match="has both matrices"):
        zoexport.compile(
            model,
            method="mebp",
            output=tmp_path / "no",
            adapter=tmp_path / "adapter",
            settings={**SETTINGS, "lora.init_weights": "activations"},
        )
    assert not (tmp_path / "no").exists()


def test_text_is_refused_where_nothing_is_measured(
    compiler: Compiler, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"lora\.init_weights=activations"):
        zoexport.compile(
            compiler.model("llama_tied"),
            output=tmp_path / "no",
            calibration=text,
            settings=SETTINGS,
        )


def test_empty_text_and_a_rank_that_is_too_large_write_nothing(
    compiler: Compiler, text: Path, tmp_path: Path
) -> None:
    model, output = compiler.model("llama_tied"), tmp_path / "no"
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DataError, match=r"empty\.jsonl.*no examples"):
        zoexport.compile(
            model,
            output=output,
            calibration=tmp_path / "empty.jsonl",
            settings={**SETTINGS, **INIT},
        )
    with pytest.raises(ConfigError, match="the smaller side"):
        zoexport.compile(
            model, output=output, calibration=text, settings={**SETTINGS, **INIT, "lora_r": 65}
        )
    assert not output.exists()
