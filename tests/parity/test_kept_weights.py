"""Weights that a compilation wrote are copied by the next one of the same model, and by no other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler, compile_tiny
from zoexport.compiler import kept_weights
from zoexport.compiler.build import WEIGHTS
from zoexport.ir import frozen
from zoexport.passes import rotate_inputs


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of kept files, however small they are."""
    monkeypatch.setenv("ZOEXPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_weights, "LEAST_BYTES", 0)
    return tmp_path / "cache" / "weights"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were made from the model."""
    found: list[Path] = []
    write = frozen.write_weights

    def noted(graph: Any, names: Any, reader: Any, path: Path, *rest: Any) -> None:
        found.append(path)
        write(graph, names, reader, path, *rest)

    monkeypatch.setattr(frozen, "write_weights", noted)
    return found


def _weights(compiler: Compiler, folder: Path, model: str = "llama", **settings: Any) -> bytes:
    given = {"target": "android-cpu", "method": "mebp", "generate": False, **settings}
    bundle = folder / f"bundle-{len([*folder.iterdir()])}"
    compile_tiny(compiler.model(model), bundle, **given)
    return (bundle / WEIGHTS).read_bytes()


def test_other_settings_of_a_run_copy_them(
    compiler: Compiler,
    tmp_path: Path,
    kept: Path,
    written: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rotate_inputs, "MINIMUM_GAIN", 1e-9)
    first = _weights(compiler, tmp_path, weights="int4")
    again = _weights(
        compiler,
        tmp_path,
        weights="int4",
        learning_rate=0.5,
        lora__r=3,
        method="mezo",
        activations="fp32",
    )
    assert first == again
    assert len(written) == 1
    # What decides the content decides the name.
    others = [
        _weights(compiler, tmp_path, weights="int4", group_size=64),
        _weights(compiler, tmp_path, weights="int8"),
        _weights(compiler, tmp_path, model="llama_tied", weights="int4"),
        # Rotated.
        _weights(compiler, tmp_path, weights="int4", method="mezo"),
    ]
    assert len({first, *others}) == 5
    assert len(written) == 5
    assert len([*kept.glob("*.safetensors")]) == 5


def test_a_damaged_file_is_written_anew(
    compiler: Compiler, tmp_path: Path, kept: Path, written: list[Path]
) -> None:
    first = _weights(compiler, tmp_path, weights="int4")
    (file,) = kept.glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert _weights(compiler, tmp_path, weights="int4") == first
    assert len(written) == 2
    assert file.read_bytes() == first


def test_what_a_mask_or_adapters_alter_is_not_kept(
    compiler: Compiler, tmp_path: Path, kept: Path, written: list[Path]
) -> None:
    settings = {"target": "ios-mlx", "method": "senszoq", "mask": compiler.mask("llama")}
    for _ in range(2):
        _weights(compiler, tmp_path, weights="int4", **settings)
    _weights(compiler, tmp_path, weights="fp32")
    assert len(written) == 3
    assert not kept.exists()


def test_a_cache_that_cannot_be_written_is_no_error(
    compiler: Compiler, tmp_path: Path, kept: Path, written: list[Path]
) -> None:
    kept.parent.write_text("a file where the folder would be")
    first = _weights(compiler, tmp_path, weights="int4")
    assert _weights(compiler, tmp_path, weights="int4") == first
    assert len(written) == 2


def test_the_oldest_go_first(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_weights, "MOST_BYTES", 250)

    def write(path: Path) -> None:
        path.write_bytes(bytes(100))

    def kept_keys() -> set[str]:
        return {file.stem for file in kept.glob("*.safetensors")}

    assert not kept_weights.write_once(tmp_path / "file", "a", write)
    assert not kept_weights.write_once(tmp_path / "file", "b", write)
    for age, key in ((100, "a"), (50, "b")):
        os.utime(kept / f"{key}.safetensors", (age, age))
    assert kept_weights.write_once(tmp_path / "file", "a", write)
    assert not kept_weights.write_once(tmp_path / "file", "c", write)
    assert kept_keys() == {"a", "c"}

    def write_large(path: Path) -> None:
        path.write_bytes(bytes(251))

    assert not kept_weights.write_once(tmp_path / "file", "d", write_large)
    assert kept_keys() == {"a", "c"}
    assert {file.name for file in kept.iterdir()} == {
        f"{key}.{ending}" for key in "ac" for ending in ("safetensors", "sha256")
    }
