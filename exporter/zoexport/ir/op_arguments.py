"""Reading and checking what operators take as arguments; another type or size raises ValueError."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def whole(name: str, tensor: torch.Tensor) -> int:
    """One int64 as a number."""
    if tensor.dtype != torch.int64 or tensor.numel() != 1:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected int64 (1)")
    return int(tensor.item())


def u32(name: str, tensor: torch.Tensor) -> int:
    """One int64 as a number below 2**32."""
    number = whole(name, tensor)
    if not 0 <= number < 1 << 32:
        raise ValueError(f"{name} is {number}; expected 0 <= {name} < 2**32")
    return number


def seed_of(tensor: torch.Tensor) -> int:
    """Return a u64 that is passed as int64."""
    return whole("seed", tensor) & 0xFFFFFFFFFFFFFFFF


def float_of(name: str, tensor: torch.Tensor) -> np.float32:
    """One float32."""
    if tensor.dtype != torch.float32 or tensor.numel() != 1:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected float32 (1)")
    return np.float32(tensor.item())


def array_of(name: str, tensor: torch.Tensor) -> NDArray[np.float32]:
    """Return a float32 tensor as numpy reads it."""
    if tensor.dtype != torch.float32:
        raise ValueError(f"{name} is {tensor.dtype}; expected float32")
    return tensor.detach().contiguous().reshape(-1).numpy()


def check_labels(label_tokens: torch.Tensor, count: int, vocabulary: int) -> None:
    """Refuse label tokens that are not int64 (count), each in [0, vocabulary)."""
    if label_tokens.dtype != torch.int64 or label_tokens.shape != (count,):
        raise ValueError(
            f"label_tokens is {label_tokens.dtype} {tuple(label_tokens.shape)}; expected int64 ({count})"
        )
    outside = (label_tokens < 0) | (label_tokens >= vocabulary)
    if bool(outside.any()):
        raise ValueError(
            f"label_tokens has {int(label_tokens[outside][0])}; expected 0 <= label < {vocabulary}"
        )
