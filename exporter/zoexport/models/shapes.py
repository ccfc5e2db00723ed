"""Published configurations in the package, and models of these shapes with random weights.

Time and memory of a step do not depend on the values of weights, so such a model can replace one
that cannot be downloaded. Every weight depends only on the name of its tensor and its index: a byte
of a PCG64 stream, which numpy keeps stable across versions, selects it from a table. The file of a
shape is therefore identical everywhere. It is written in chunks, also for large models.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
import shutil
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from zoexport.core.errors import ConfigError, nearest
from zoexport.core.fetch import cache_dir
from zoexport.core.files import atomic_folder, only_writer, sha256
from zoexport.core.resources import shared
from zoexport.core.tensor_file import TensorEntry, TensorFileWriter
from zoexport.models.language import language_config, model_class
from zoexport.models.weights import row_pieces

if TYPE_CHECKING:
    import torch

PREFIX = "shape:"
"""Prefix of a MODEL argument that names a shape."""
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_VERSION = 1
"""Version of the weights; increased when the weights of a configuration change."""
_DTYPE = "bfloat16"
_WORD = 8
"""Bytes per word of PCG64."""


def known() -> dict[str, Path]:
    """Return the folders of the published config.json files by shape name."""
    files = sorted(shared("shapes").glob(f"*/{_CONFIG}"))
    return {file.parent.name: file.parent for file in files}


def shape_of(argument: str) -> str | None:
    """Return the shape that a MODEL argument names; None if it is not a shape."""
    return argument.removeprefix(PREFIX) if argument.startswith(PREFIX) else None


def published(name: str) -> Path:
    """Return the folder of a shape's config.json.

    Raises:
        ConfigError: no shape has this name; the message lists all shapes.
    """
    shapes = known()
    if name not in shapes:
        raise ConfigError(
            f"shape {name!r}",
            found="no published configuration of this name",
            expected="one of " + ", ".join(shapes),
            fix=f"Choose one of them.{nearest(name, shapes)}",
        )
    return shapes[name]


def shape_folder(name: str) -> Path:
    """Return the Hugging Face directory of a shape's random model, without tokenizer.

    Written at the first call.

    Raises:
        ConfigError: no such shape, or the cache cannot be written; no partial model is left there.
    """
    config = published(name)
    digest = sha256(config / _CONFIG)
    folder = cache_dir() / "shapes" / f"{name}-{_VERSION}-{digest[:12]}"
    files = [folder / _CONFIG, folder / _WEIGHTS]
    if not all(file.is_file() for file in files):
        with only_writer(folder):
            # Another process may have written it while this one waited.
            if not all(file.is_file() for file in files):
                with atomic_folder(folder, replace=True) as output:
                    write_random(config, output)
    return folder


def write_random(published: Path, folder: Path) -> None:
    """Write a model of random weights in bfloat16: its configuration and one file of weights.

    Matrices are normal, in 256 steps, with mean zero and standard deviation ``initializer_range``
    (configuration). Vectors have transformers' initial values: norms that scale by one, biases of
    zero.

    Args:
        published: a folder with the configuration.
        folder: exists; belongs in an ``atomic_folder``.

    Raises:
        ModelError: the configuration does not describe a language model. OSError: the folder cannot
            be written.
    """
    import torch

    kind, config = model_class(language_config(published, str(published)))
    with torch.device("meta"):
        model: Any = kind(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # transformers draws some initial values, such as A_log of Qwen3.5
        vectors = _vectors(model)
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    entries = [TensorEntry(name, _DTYPE, shape) for name, shape in shapes.items()]
    table = _quantiles(config.initializer_range)
    with TensorFileWriter(folder / _WEIGHTS, entries) as file:
        for name, shape in shapes.items():
            if name in vectors:
                file.write(name, vectors[name])
                continue
            row = math.prod(shape[1:])
            for first, last in row_pieces(shape, 0, shape[0]):
                drawn = table[_stream(name, first * row, (last - first) * row)]
                rows = torch.from_numpy(drawn).view(torch.bfloat16)
                file.write_rows(name, first, rows.view(last - first, *shape[1:]))
    shutil.copyfile(published / _CONFIG, folder / _CONFIG)


def _vectors(model: Any) -> dict[str, torch.Tensor]:
    """Return transformers' initial values of the one-dimensional parameters of a meta model."""
    import torch

    found: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        vectors = {name for name, value in own.items() if value.dim() < 2}
        begun: dict[str, torch.Tensor] = {}
        if own and len(vectors) == len(own):  # a norm, of ones or of offsets from one
            filled = copy.deepcopy(module).to_empty(device="cpu")
            model._init_weights(filled)
            begun = dict(filled.named_parameters(recurse=False))
        for name in vectors:
            value = begun.get(name, torch.zeros(own[name].shape))
            found[f"{path}.{name}"] = value.detach().to(torch.bfloat16)
    return found


@functools.cache
def _quantiles(deviation: float) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Return the normal quantiles at the centers of 256 equal shares, as bits of bfloat16."""
    import torch

    normal = NormalDist(0, deviation)
    values = [normal.inv_cdf((share + 0.5) / 256) for share in range(256)]
    return torch.tensor(values, dtype=torch.bfloat16).view(torch.int16).numpy()


def _stream(name: str, begin: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes ``begin`` to ``begin + count - 1`` of a tensor's stream."""
    generator = np.random.PCG64(int.from_bytes(hashlib.sha256(name.encode()).digest()))
    generator.advance(begin // _WORD)
    skipped = begin % _WORD
    words = generator.random_raw(-(-(skipped + count) // _WORD))
    return words.astype("<u8", copy=False).view(np.uint8)[skipped:][:count]
