"""The mask file: written and read back, and every file that is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from zoexport.core.errors import ConfigError
from zoexport.core.mask import FORMAT, Mask, MaskFacts, read_mask, write_mask

FACTS = MaskFacts(
    kind="sensitive",
    model="tiny",
    model_sha256="1" * 64,
    corpus="brown",
    corpus_sha256="2" * 64,
    sequences=3,
    max_length=16,
    density=0.25,
    scope="model",
    seed=7,
    shapes={"b.weight": [2, 4], "a.weight": [3, 2]},
    loss="all tokens",
)
PLACES = {"b.weight": torch.tensor([0, 3, 7]), "a.weight": torch.tensor([], dtype=torch.int64)}


TEXT = json.dumps(dataclasses.asdict(FACTS))


def written(path: Path, facts: str = TEXT, **places: torch.Tensor) -> Path:
    """A file as :func:`write_mask` would write it, with some places replaced."""
    save_file(PLACES | places, path, metadata={"format": FORMAT, "facts": facts})
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "some.mask"
    write_mask(path, Mask(FACTS, PLACES))
    found = read_mask(path)
    assert found.facts == FACTS
    # In the model's order, which is not that of the file.
    assert list(found.places) == ["b.weight", "a.weight"]
    assert all(torch.equal(found.places[name], places) for name, places in PLACES.items())
    assert found.count() == 3


def test_equal_masks_have_equal_bytes_in_every_process(tmp_path: Path) -> None:
    probe = (
        "import sys; from pathlib import Path; from tests.unit.core.test_mask import *\n"
        "write_mask(Path(sys.argv[1]), Mask(FACTS, PLACES))\n"
    )
    paths = [tmp_path / f"{number}.mask" for number in range(3)]
    for path in paths:
        subprocess.run(
            [sys.executable, "-c", probe, path], check=True, cwd=Path(__file__).parents[3]
        )
    assert len({path.read_bytes() for path in paths}) == 1


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ({"b.weight": torch.tensor([0, 8])}, "places outside 2 x 4 for b.weight"),
        ({"b.weight": torch.tensor([-1, 3])}, "places outside 2 x 4 for b.weight"),
        ({"b.weight": torch.tensor([3, 0, 7])}, "places that do not ascend for b.weight"),
        ({"b.weight": torch.tensor([3, 3])}, "places that do not ascend for b.weight"),
        ({"b.weight": torch.tensor([0, 3], dtype=torch.int32)}, "torch.int32 (2,) for b.weight"),
        ({"b.weight": torch.tensor([[0, 3]])}, "torch.int64 (1, 2) for b.weight"),
        ({"b.weight": PLACES["a.weight"]}, "no chosen weight"),
    ],
)
def test_places_that_cannot_be(tmp_path: Path, places: dict[str, torch.Tensor], found: str) -> None:
    path = written(tmp_path / "some.mask", **places)
    with pytest.raises(ConfigError, match="zoexport sensitivity") as error:
        read_mask(path)
    assert error.value.found == found


def test_a_weight_without_places(tmp_path: Path) -> None:
    path = tmp_path / "some.mask"
    save_file({"b.weight": PLACES["b.weight"]}, path, metadata={"format": FORMAT, "facts": TEXT})
    with pytest.raises(ConfigError) as error:
        read_mask(path)
    assert error.value.found == "no places for a.weight"


@pytest.mark.parametrize("facts", ["not json", '{"kind": "random"}', '{"other": 1}', "[]"])
def test_facts_that_cannot_be_read(tmp_path: Path, facts: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_mask(written(tmp_path / "some.mask", facts))
    assert error.value.found.startswith("metadata that cannot be read (")


def test_other_files(tmp_path: Path) -> None:
    missing = tmp_path / "no.mask"
    text = tmp_path / "text.mask"
    text.write_text("a text, and no safetensors file")
    weights = tmp_path / "weights.mask"
    save_file({"w": torch.zeros(2)}, weights)
    for path, found in (
        (missing, "No such file"),
        (text, "header"),
        (weights, "the format None"),
    ):
        with pytest.raises(ConfigError) as error:
            read_mask(path)
        assert str(path) in error.value.where
        assert found.lower() in error.value.found.lower()


def test_a_truncated_file(tmp_path: Path) -> None:
    path = written(tmp_path / "some.mask")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ConfigError):
        read_mask(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError):
        write_mask(tmp_path / "file" / "some.mask", Mask(FACTS, PLACES))
