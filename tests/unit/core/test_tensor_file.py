"""The safetensors file that is written piece by piece: what the library reads back, and what it refuses."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder
from zoexport.core.tensor_file import TensorEntry, TensorFileWriter

TENSORS = {
    "codes": torch.arange(21, dtype=torch.uint8).reshape(3, 7),
    "half": torch.linspace(-3, 3, 15).reshape(5, 3).bfloat16(),
    "scale": torch.tensor(0.5),
    "empty": torch.zeros(0, 4),
    "matrix": torch.linspace(-1, 1, 24).reshape(4, 3, 2),
    "ids ä": torch.tensor([1 << 40, -1]),
    "flags": torch.tensor([True, False, True]),
}


def entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    return TensorEntry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


ENTRIES = [entry(name, tensor) for name, tensor in TENSORS.items()]


def write_all(path: Path) -> None:
    with TensorFileWriter(path, ENTRIES) as writer:
        writer.write_rows("matrix", 3, TENSORS["matrix"][3:])
        for name, tensor in TENSORS.items():
            if name != "matrix":
                writer.write(name, tensor)
        writer.write_rows("matrix", 0, TENSORS["matrix"][:1])
        writer.write_rows("matrix", 1, TENSORS["matrix"][1:3])


def test_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_all(path)
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys()
    for name, expected in TENSORS.items():
        assert loaded[name].dtype == expected.dtype and torch.equal(loaded[name], expected)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_all(path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    start = 8 + length
    assert start % 64 == 0
    header = json.loads(content[8:start])
    end = 0
    for name, tensor in sorted(TENSORS.items(), key=lambda item: -item[1].element_size()):
        first, last = header[name]["data_offsets"]
        assert (first, last) == (end, end + tensor.nbytes)
        assert (start + first) % tensor.element_size() == 0
        end = last
    assert len(content) == start + end


def test_other_layouts_are_written_in_order(tmp_path: Path) -> None:
    values = torch.arange(12.0).reshape(3, 4).requires_grad_()
    with TensorFileWriter(tmp_path / "a", [TensorEntry("t", "float32", (4, 3))]) as writer:
        writer.write("t", values.T)
    assert torch.equal(load_file(tmp_path / "a")["t"], values.detach().T)


@pytest.mark.parametrize(
    ("name", "begin", "rows", "message"),
    [
        ("other", 0, torch.zeros(1, 3), "no tensor of the file is called 'other'"),
        ("t", 0, torch.zeros(1, 3, dtype=torch.int32), "t is int32; expected float32"),
        ("t", 0, torch.zeros(1, 4), r"rows of t are \(1, 4\); expected rows of \(4, 3\)"),
        ("t", 0, torch.zeros(()), r"rows of t are \(\)"),
        ("s", 0, torch.zeros(1), r"rows of s are \(1,\); expected rows of \(\)"),
        ("t", -1, torch.zeros(1, 3), "rows -1 to 0 of t, which has 4"),
        ("t", 3, torch.zeros(2, 3), "rows 3 to 5 of t, which has 4"),
        ("t", 1, torch.zeros(2, 3), "rows 1 to 3 of t were written before"),
        ("t", 2, torch.zeros(1, 3), "rows 2 to 3 of t were written before"),
    ],
)
def test_rows_that_do_not_fit(
    name: str, begin: int, rows: torch.Tensor, message: str, tmp_path: Path
) -> None:
    entries = [TensorEntry("t", "float32", (4, 3)), TensorEntry("s", "float32", ())]
    writer = TensorFileWriter(tmp_path / "a", entries)
    writer.write_rows("t", 2, torch.zeros(1, 3))
    with pytest.raises(ValueError, match=message), writer:
        writer.write_rows(name, begin, rows)


def test_whole_tensors_that_do_not_fit(tmp_path: Path) -> None:
    writer = TensorFileWriter(tmp_path / "a", [TensorEntry("t", "float32", (4, 3))])
    with writer:
        with pytest.raises(ValueError, match=r"t is \(3, 4\); expected \(4, 3\)"):
            writer.write("t", torch.zeros(3, 4))
        writer.write("t", torch.zeros(4, 3))
        with pytest.raises(ValueError, match="were written before"):
            writer.write("t", torch.zeros(4, 3))


def test_what_is_missing_is_an_error(tmp_path: Path) -> None:
    writer = TensorFileWriter(tmp_path / "a", [TensorEntry(name, "uint8", (4,)) for name in "abc"])
    writer.write("b", torch.zeros(4, dtype=torch.uint8))
    writer.write_rows("c", 1, torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="not written: 2 tensors, a, c"), writer:
        pass


def test_an_error_in_the_block_is_not_hidden(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError),
        TensorFileWriter(tmp_path / "a", [TensorEntry("t", "float32", (4,))]),
    ):
        raise KeyError


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([TensorEntry("t", "float32", (1,))] * 2, "two tensors are called 't'"),
        ([TensorEntry("t", "complex64", (1,))], "t is complex64; expected one of float64, int64"),
    ],
)
def test_bad_entries(entries: list[TensorEntry], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        TensorFileWriter(tmp_path / "a", entries)
    assert not list(tmp_path.iterdir())


def test_a_file_without_tensors(tmp_path: Path) -> None:
    with TensorFileWriter(tmp_path / "a", []):
        pass
    assert load_file(tmp_path / "a") == {}


def test_in_an_atomic_folder_it_is_whole_or_absent(tmp_path: Path) -> None:
    entries = [TensorEntry("t", "float32", (4,))]
    with (
        pytest.raises(ValueError, match="not written"),
        atomic_folder(tmp_path / "folder") as folder,
        TensorFileWriter(folder / "a", entries),
    ):
        pass
    assert not list(tmp_path.iterdir())
    with (
        pytest.raises(ConfigError, match="found No such file or directory"),
        atomic_folder(tmp_path / "folder") as folder,
    ):
        TensorFileWriter(folder / "none" / "a", entries)
    assert not list(tmp_path.iterdir())
