"""Common parts of trained-weight files: the model that they belong to, and whole models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.adapters.files import refuse
from zoexport.core import outside, tensor_file
from zoexport.core.errors import ConfigError, StateError, first_line
from zoexport.core.files import atomic_folder
from zoexport.trained import DTYPES, Output

if TYPE_CHECKING:
    from torch import Tensor

    from zoexport.models import LoadedModel


def model_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the members that identify the model of a weights file."""
    model = manifest["model"]
    return {"base_model": model["source"], "model_sha256": model["sha256"]}


def check_model(path: Path, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Refuse the description ``config`` from ``path`` if it belongs to another model.

    Raises:
        StateError: it belongs to another model.
    """
    found, expected = config.get("model_sha256"), model_of(manifest)["model_sha256"]
    if found != expected:
        refuse(
            f"{path}",
            found=f"weights of the model {str(found)[:16]}...",
            expected=f"those of {expected[:16]}..., from which the bundle was compiled",
            fix="Use a bundle of the same model.",
        )


def read_description(path: Path, version: str, kind: str) -> dict[str, Any]:
    """Read the JSON object at ``path`` with ``format`` = ``version``; ``kind``: of ``--format``.

    Raises:
        StateError: the file is missing or has another format.
    """
    try:
        content = outside.parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(path, kind, error) from error
    if not isinstance(content, dict) or content.get("format") != version:
        refuse(f"{path}", found="another format", expected=version, fix=_fix(kind))
    return content


def read_tensors(path: Path, kind: str) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file.

    Raises:
        StateError: the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensor_file.check(path)
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(path, kind, error) from error


def save_model(output: Output, loaded: LoadedModel) -> None:
    """Write a model and its tokenizer atomically as a new folder in transformers' format.

    Args:
        output: the folder, and the type of its weights.
        loaded: the original model with the new weights, which are converted in place.

    Raises:
        ConfigError: the folder exists and ``output.replace`` is off, a weight exceeds the range of the type, or the
            place cannot be written.
    """
    import torch

    from zoexport.models.conv1d import conv1d_from_linear
    from zoexport.models.saved import save_folder

    conv1d_from_linear(loaded.model, loaded.transposed)
    model: Any = loaded.model
    name = loaded.dtype if output.dtype is None else DTYPES[output.dtype]
    dtype: torch.dtype = getattr(torch, name)
    limit = torch.finfo(dtype).max
    for path, weight in model.named_parameters():
        if dtype == torch.float16 and float(weight.abs().max()) > limit:
            raise ConfigError(
                f"weight {path}",
                found=f"values up to {float(weight.abs().max()):g}",
                expected=f"at most {limit:g}, as fp16 has no larger numbers",
                fix="Choose --dtype bf16 or fp32.",
            )
    model.to(dtype)
    with atomic_folder(output.path, replace=output.replace) as folder:
        save_folder(model, loaded.tokenizer, folder)


def _unreadable(path: Path, kind: str, error: Exception) -> StateError:
    return StateError(
        f"{path}",
        found=f"no readable file ({first_line(error)})",
        expected=f"a file that zoexport wrote with --format {kind}",
        fix=_fix(kind),
    )


def _fix(kind: str) -> str:
    return f"Name the folder that `zoexport adapter export --format {kind}` wrote."
