"""Published configurations by name, and random weights of their shapes: the same bytes, whole or not at all."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from scipy.stats import norm

from zoexport import models
from zoexport.core import recipes
from zoexport.core.errors import ConfigError, ModelError
from zoexport.core.files import only_writer, sha256
from zoexport.models import shapes, weights
from zoexport.tools.plan import plan_training

ROOT = Path(__file__).parents[3]
TINY = {
    "head_dim": 16,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 301,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES = ("smollm2-360m", "qwen2.5-1.5b", "qwen3-4b", "gemma3-1b", "llama3.2-3b")
"""A shape of each architecture but Gemma3-4B's, whose images' part does not become tiny."""


LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
MAMBA = {"mamba_n_heads": 5, "mamba_d_head": 16, "mamba_d_state": 8, "shared_intermediate_size": 72}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 301}
SLIDING = ["sliding_attention", "full_attention"]
NEWER: dict[str, dict[str, Any]] = {
    "gemma3-270m": {"layer_types": SLIDING},
    "lfm2-350m": {"full_attn_idxs": [1], "block_ff_dim": 72},
    "granite-4.0-h-350m": {"layer_types": ["mamba", "attention"], **MAMBA},
    "qwen3.5-0.8b": {"layer_types": ["linear_attention", "full_attention"], **LINEAR},
    "olmoe-1b-7b": {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": 10},
    "gemma-3n-e2b": {
        "activation_sparsity_pattern": [0.95, 0.0],
        "intermediate_size": [72, 72],
        "layer_types": SLIDING,
        "num_kv_shared_layers": 0,
        **PER_LAYER,
    },
}
"""Shapes whose layers have other weights than matrices and norms, and what makes them tiny."""


def _tiny(name: str, folder: Path, **changes: Any) -> Path:
    """A published configuration cut down."""
    content = json.loads((shapes.known()[name] / "config.json").read_text("utf-8"))
    content.get("text_config", content).update({**TINY, **changes})
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(content), "utf-8")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder of shapes, with ``tiny`` the only shape there is."""
    tiny = _tiny("qwen2.5-0.5b", tmp_path / "shapes" / "tiny")
    monkeypatch.setattr(shapes, "known", lambda: {"tiny": tiny})
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shapes"


def _written(config: Path, folder: Path) -> Path:
    folder.mkdir()
    shapes.write_random(config, folder)
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Names.


def test_every_model_of_a_recipe_is_a_shape_and_every_shape_is_found() -> None:
    named = {name.rpartition("-")[0] for name in recipes.known()} - {"any"}
    assert named <= set(shapes.known())
    for name in shapes.known():
        source = models.resolve(f"shape:{name}")
        assert (source.kind, source.name) == ("shape", f"{name}-random")
        assert models.shape_of(source.argument) == name
    assert models.shape_of("smollm2-135m") is None


@pytest.mark.parametrize("name", ["qwen2.5-0.6b", "", "../recipes", "Qwen2.5-0.5B"])
def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        models.resolve(f"shape:{name}")
    assert refused.value.expected == "one of " + ", ".join(shapes.known())
    assert refused.value.where == f"shape {name!r}"


def test_a_message_of_models_says_that_there_are_shapes() -> None:
    with pytest.raises(ModelError, match="shape:NAME"):
        models.resolve("./nowhere")


def test_a_plan_writes_no_weights(cache: Path) -> None:
    found = plan_training(
        "shape:tiny",
        method="mebp",
        target="host",
        settings={"max_length": "16", "weights": "fp32"},
        recipe=None,
        progress=lambda *_: None,
    )
    assert found["model"] == "shape:tiny"
    assert not cache.exists()


# Weights.


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_loads_as_it_was_drawn(name: str, tmp_path: Path) -> None:
    config = _tiny(name, tmp_path / "config")
    folder = _written(config, tmp_path / "model")
    assert (folder / "config.json").read_bytes() == (config / "config.json").read_bytes()
    loaded = models.load(models.resolve(str(folder)), lazy=True)
    assert loaded.lazy and loaded.vocab_size == 301 and loaded.tokenizer is None
    whole = models.load(models.resolve(str(folder)))
    quantiles = torch.tensor(norm.ppf((np.arange(256) + 0.5) / 256, scale=0.02)).bfloat16().float()
    zero_is_one = name.startswith("gemma3")
    seen = set()
    for key, parameter in whole.model.named_parameters():
        assert torch.equal(loaded.weights.read(key), parameter)
        if parameter.dim() == 1:
            one = not key.endswith("bias") and not zero_is_one
            assert torch.equal(parameter, torch.full_like(parameter, float(one))), key
            continue
        assert torch.isin(parameter, quantiles).all(), key
        assert abs(parameter.std().item() / 0.02 - 1) < 4 / math.sqrt(parameter.numel())
        assert abs(parameter.mean().item() / 0.02) < 4 / math.sqrt(parameter.numel())
        seen.add(parameter.flatten()[:32].numpy().tobytes())
    matrices = [p for p in whole.model.parameters() if p.dim() > 1]
    assert len(seen) == len(matrices) > 10, "no two tensors have the same numbers"
    logits = whole.model(input_ids=torch.arange(20)[None]).logits
    assert logits.isfinite().all() and logits.std() > 0.01


@pytest.mark.parametrize("name", NEWER)
def test_shapes_of_newer_architectures(name: str, tmp_path: Path) -> None:
    config = _tiny(name, tmp_path / "config", **NEWER[name])
    folder = _written(config, tmp_path / "model")
    assert _content(_written(config, tmp_path / "second")) == _content(folder)
    lazy = models.load(models.resolve(str(folder)), lazy=True)
    whole = models.load(models.resolve(str(folder)))
    assert lazy.lazy
    for key, parameter in whole.model.named_parameters():
        assert torch.equal(lazy.weights.read(key), parameter), key
    logits = whole.model(input_ids=torch.arange(20)[None]).logits
    assert logits.isfinite().all() and logits.std() > 1e-3


def test_a_shape_written_twice_is_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _tiny("qwen2.5-0.5b", tmp_path / "config")
    first = _content(_written(config, tmp_path / "first"))
    assert _content(_written(config, tmp_path / "second")) == first
    # In pieces of a few rows, which begin anywhere in the stream.
    monkeypatch.setattr(weights, "_PIECE_BYTES", 4 * 3 * 40)
    pieces: list[int] = []
    writer = shapes.TensorFileWriter.write_rows
    monkeypatch.setattr(
        shapes.TensorFileWriter,
        "write_rows",
        lambda self, name, begin, rows: (
            pieces.append(rows.shape[0]),
            writer(self, name, begin, rows),
        ),
    )
    assert _content(_written(config, tmp_path / "third")) == first
    assert len(pieces) > 200 and max(pieces) == 3


def test_a_tensor_s_numbers_are_those_of_its_name(tmp_path: Path) -> None:
    """On every machine and with every version: numpy's generator of bytes gives the same stream by another way."""
    folder = _written(_tiny("smollm2-135m", tmp_path / "config"), tmp_path / "model")
    name = "model.layers.1.mlp.down_proj.weight"
    seed = 0x65C627D24D2E2D4232F1D949F818330C52BDEF9879BEB5A120A17410552D0EE0  # the name's SHA-256
    stream = np.frombuffer(np.random.Generator(np.random.PCG64(seed)).bytes(40 * 72), np.uint8)
    expected = torch.tensor(norm.ppf((stream + 0.5) / 256, scale=0.02)).bfloat16().view(40, 72)
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        assert torch.equal(file.get_tensor(name), expected)


_MEASURE = """
import os, sys
from pathlib import Path
from zoexport.core.memory import anonymous_peak, status
from zoexport.models import shapes
small, large, output = map(Path, sys.argv[1:])
(output / "small").mkdir()
shapes.write_random(small, output / "small")
before = status("RssAnon")
(output / "large").mkdir()
with anonymous_peak(os.getpid()) as peak:
    shapes.write_random(large, output / "large")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_tensor_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    small = _tiny("qwen2.5-0.5b", tmp_path / "small-config")
    large = _tiny("qwen2.5-0.5b", tmp_path / "large-config", vocab_size=8_000_000)
    command = [sys.executable, "-c", _MEASURE, small, large, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    written = tmp_path / "large" / "model.safetensors"
    assert written.stat().st_size > 640e6
    written.unlink()
    assert float(done.stdout) < 200  # MB


# The cache.


def test_a_shape_is_written_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.resolve("shape:tiny")
    first = models.fingerprint(source)
    loaded = models.load(source)
    assert (loaded.name, loaded.source, loaded.sha256) == ("tiny-random", "shape:tiny", first)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    assert first == sha256(folder / "model.safetensors")

    def refuse(*_: object) -> None:
        raise AssertionError("written again")

    with monkeypatch.context() as patched:
        patched.setattr(shapes, "write_random", refuse)
        assert shapes.shape_folder("tiny") == folder
    # One that lost its weights is made again; another configuration has a place of its own.
    (folder / "model.safetensors").unlink()
    assert models.fingerprint(source) == first
    config = shapes.known()["tiny"] / "config.json"
    config.write_text(config.read_text("utf-8").replace('"vocab_size": 301', '"vocab_size": 302'))
    assert models.load(source).vocab_size == 302
    assert shapes.shape_folder("tiny") != folder


def test_a_full_disk_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shapes.TensorFileWriter, "write_rows", full)
        with pytest.raises(ConfigError, match="No space left on device"):
            models.load(models.resolve("shape:tiny"))
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


_KILL = """
import os, signal, sys
from pathlib import Path
from zoexport.models import shapes
shapes.known = lambda: {"tiny": Path(sys.argv[1])}
write = shapes.TensorFileWriter.write_rows
def killed(self, name, begin, rows):
    write(self, name, begin, rows)
    if "layers.1" in name:
        os.kill(os.getpid(), signal.SIGKILL)
shapes.TensorFileWriter.write_rows = killed
shapes.shape_folder("tiny")
"""


def test_a_killed_write_leaves_nothing_that_stays(cache: Path) -> None:
    command = [sys.executable, "-c", _KILL, str(shapes.known()["tiny"])]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    left = [path for path in cache.iterdir() if path.is_dir()]
    assert [path.name[0] for path in left] == ["."], "no folder has the model's name"
    assert any(path.stat().st_size for path in left[0].iterdir())
    folder = shapes.shape_folder("tiny")
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    inside, waits = threading.Event(), threading.Event()

    def second() -> None:
        inside.wait()
        waits.set()
        with only_writer(tmp_path / "here" / "model"):
            order.append("second")

    other = threading.Thread(target=second)
    other.start()
    with only_writer(tmp_path / "here" / "model"):
        inside.set()
        waits.wait()
        with only_writer(tmp_path / "here" / "another"):  # which nobody else writes
            other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="can be written"),
        only_writer(tmp_path / "file" / "model"),
    ):
        pass
