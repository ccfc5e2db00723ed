"""Blank models: models that a configuration describes, without weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.untouched import untouched_zeros
from zoexport.models.conv1d import linear_from_conv1d
from zoexport.models.language import language_config, model_class
from zoexport.models.load import (
    TOKENIZER_FILES,
    from_pretrained,
    gguf_config,
    hub_folder,
    registry_folder,
    unreadable,
)
from zoexport.models.quiet import quiet
from zoexport.models.shapes import published, shape_of
from zoexport.models.source import ModelSource

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class BlankModel:
    """Language model with shapes but no weights.

    Attributes:
        model: like ``LoadedModel.model``; its parameters are zeros that take no memory until they
            are written.
        name: short name.
        tokenizer_bytes: size of the tokenizer's files, 0 if it has none.
    """

    model: torch.nn.Module
    name: str
    tokenizer_bytes: int


def blank(source: ModelSource, *, verbose: bool = False) -> BlankModel:
    """Return the model that a configuration describes; no weights are read or downloaded.

    Args:
        source: result of :func:`~zoexport.models.resolve`, with or without weights.
        verbose: let transformers show warnings and progress bars.

    Raises:
        ModelError: the configuration cannot be fetched, or transformers cannot make a model from
            it.
    """
    where = f"model {source.argument}"
    with quiet(verbose):
        if source.kind == "gguf":
            assert source.path is not None
            return BlankModel(_blank(gguf_config(source.path), where), source.name, 0)
        folder = _folder(source)
        config = language_config(folder, source.argument)
        files = [folder / name for name in TOKENIZER_FILES]
        size = sum(path.stat().st_size for path in files if path.is_file())
        return BlankModel(_blank(config, where), source.name, size)


def _folder(source: ModelSource) -> Path:
    if source.path is not None:
        return source.path
    if source.kind == "registry":
        return registry_folder(source.name)
    shape = shape_of(source.argument)
    if shape is not None:
        return published(shape)
    return hub_folder(source.argument, weights=False)


def _blank(config: Any, where: str) -> Any:
    """Make the model with transformers' own loader, so that buffers have their usual values."""
    import torch

    kind, config = model_class(config)
    try:
        with torch.device("meta"):
            shapes = kind(config)
    except Exception as error:  # an impossible configuration raises many types
        raise unreadable(where, error) from error
    # Tied parameters once, as in files.
    parameters = {name: tuple(value.shape) for name, value in shapes.named_parameters()}
    tensors = {name: untouched_zeros(shape) for name, shape in parameters.items()}
    persistent = shapes.state_dict()
    for name, buffer in shapes.named_buffers():
        if name in persistent:
            tensors[name] = torch.zeros(buffer.shape, dtype=buffer.dtype)
    model = from_pretrained(kind, None, where, config=config, state_dict=tensors)
    linear_from_conv1d(model, lambda weight: untouched_zeros(tuple(weight.T.shape)))
    model.eval()
    model.requires_grad_(False)
    return model
