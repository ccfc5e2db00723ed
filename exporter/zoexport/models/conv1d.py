"""Conversion of GPT-2's transposed linear layers to plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def linear_from_conv1d(
    model: torch.nn.Module, transposed: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> list[str]:
    """Replace transformers' ``Conv1D`` (GPT-2: y = x W + b, W (in, out)) by ``nn.Linear`` (y = x W^T + b).

    Later code then finds linear layers by one type. Module paths stay the same, so that adapters
    fit the original model.

    Args:
        transposed: returns W^T, contiguous, for W; None: copy.

    Returns:
        The paths of the replaced modules.
    """
    import torch

    paths = conv1d_paths(model)
    for path in paths:
        conv: Any = model.get_submodule(path)
        inputs, outputs = conv.weight.shape
        linear = torch.nn.Linear(inputs, outputs, device="meta")
        weight = conv.weight.detach()
        linear.weight = torch.nn.Parameter(
            weight.T.contiguous() if transposed is None else transposed(weight)
        )
        linear.bias = conv.bias
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, linear)
    return paths


def conv1d_from_linear(model: torch.nn.Module, paths: list[str]) -> None:
    """Undo :func:`linear_from_conv1d` for these modules."""
    import torch
    from transformers.pytorch_utils import Conv1D

    for path in paths:
        linear: Any = model.get_submodule(path)
        conv = Conv1D(0, 0)
        conv.nf, conv.nx = linear.weight.shape
        conv.weight = torch.nn.Parameter(linear.weight.detach().T.contiguous())
        conv.bias = linear.bias
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, conv)


def conv1d_paths(model: torch.nn.Module) -> list[str]:
    """Return the paths of the layers that :func:`linear_from_conv1d` replaces."""
    from transformers.pytorch_utils import Conv1D

    return [path for path, module in model.named_modules() if isinstance(module, Conv1D)]
