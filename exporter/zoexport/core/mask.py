"""The mask file: which of a model's linear weights are trained (SensZOQ, definition 3).

A safetensors file. For each linear weight, by its parameter's name, the places of its chosen elements: int64 (k),
ascending, ``row * columns + column``. The metadata are ``format`` and ``facts``, the fields of :class:`MaskFacts` as
JSON. docs/formats.md describes both.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core import outside, tensor_file
from zoexport.core.errors import ConfigError, first_line
from zoexport.core.files import atomic_file

if TYPE_CHECKING:
    import torch

FORMAT = "zoexport-mask/1"


@dataclasses.dataclass(frozen=True)
class MaskFacts:
    """Provenance of a mask.

    Attributes:
        kind: selection method: sensitive, random, largest, smallest or grasp.
        model: name of the model. model_sha256: hash in the bundle's manifest.
        corpus: name of the text whose gradients selected the weights; empty if none did.
        corpus_sha256: hash of the text. sequences: their number. max_length: tokens of the longest.
        density: selected share of the linear weights.
        scope: ``model``, the best of all weights, or ``layer``, the best of each layer.
        seed: seed of a random selection.
        shapes: shape (rows, columns) of every linear weight, by its parameter's name.
        loss: tokens that count in the loss: ``all tokens``, or only the examples' ``label tokens``;
            empty if no text selected the weights.
    """

    kind: str
    model: str
    model_sha256: str
    corpus: str
    corpus_sha256: str
    sequences: int
    max_length: int
    density: float
    scope: str
    seed: int
    shapes: dict[str, list[int]]
    loss: str = ""


@dataclasses.dataclass(frozen=True)
class Mask:
    """Chosen elements by parameter, int64 (k) each, ascending; none have an empty tensor."""

    facts: MaskFacts
    places: Mapping[str, torch.Tensor]

    def count(self) -> int:
        """Number of selected weights."""
        return sum(places.numel() for places in self.places.values())


def ranges(places: Mapping[str, Sized]) -> dict[str, tuple[int, int]]:
    """Return the range of each parameter's elements in the concatenation of all parameters."""
    found = {}
    end = 0
    for name, own in places.items():
        begin, end = end, end + len(own)
        found[name] = (begin, end)
    return found


def write_mask(path: Path, mask: Mask) -> None:
    """Write a mask file: whole, or not at all. Equal masks have equal bytes."""
    from safetensors.torch import save

    metadata = {"format": FORMAT, "facts": json.dumps(dataclasses.asdict(mask.facts))}
    content = save(dict(mask.places), metadata=metadata)
    with atomic_file(path) as file:
        file.write_bytes(_in_order(content))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with sorted metadata, whose order is another one in every process."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def read_mask(path: Path) -> Mask:
    """Read a mask file and check it.

    Raises:
        ConfigError: no such file, another format, or places outside their weights.
    """
    from safetensors import SafetensorError, safe_open

    try:
        tensor_file.check(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            places = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise _unusable(path, first_line(error)) from error
    if metadata.get("format") != FORMAT:
        raise _unusable(path, f"the format {metadata.get('format')!r}")
    try:
        facts = _facts(outside.parse(metadata["facts"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(path, f"metadata that cannot be read ({first_line(error)})") from error
    for name, shape in facts.shapes.items():
        if problem := _problem(places.get(name), shape):
            raise _unusable(path, f"{problem} for {name}")
    mask = Mask(facts, {name: places[name] for name in facts.shapes})
    if mask.count() == 0:
        raise _unusable(path, "no chosen weight")
    return mask


def _facts(content: Any) -> MaskFacts:
    """Parse the facts of a file's metadata; raise TypeError or ValueError if they are invalid."""
    facts = MaskFacts(**content)
    kinds: dict[str, Any] = {
        "str": str,
        "int": int,
        "float": (int, float),
        "dict[str, list[int]]": dict,
    }
    for field in dataclasses.fields(facts):
        value = getattr(facts, field.name)
        if not isinstance(value, kinds[str(field.type)]) or isinstance(value, bool):
            raise TypeError(f"{field.name} = {value!r}"[:200])
    for name, shape in facts.shapes.items():
        sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if not sizes or len(shape) != 2:
            raise ValueError(f"the shape of {name} is {shape!r}"[:200])
    return facts


def _problem(places: Any, shape: list[int]) -> str:
    import torch

    if places is None:
        return "no places"
    if places.dtype != torch.int64 or places.dim() != 1:
        return f"{places.dtype} {tuple(places.shape)}"
    if places.numel() and not 0 <= int(places[0]) <= int(places[-1]) < shape[0] * shape[1]:
        return f"places outside {shape[0]} x {shape[1]}"
    return "places that do not ascend" if bool((places[1:] <= places[:-1]).any()) else ""


def _unusable(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"mask {path}",
        found=found,
        expected="a file that `zoexport sensitivity` wrote",
        fix="Write it with `zoexport sensitivity MODEL -o MASK`.",
    )
