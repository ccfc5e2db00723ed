"""Tensors with memory of their own, straight from the system: none before it is written, and all given back at once.

torch's own allocator may reuse memory that was written before, and what it frees between smaller things that are kept
stays with the process.
"""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return zeros that use no memory until written; they share no page with other objects.

    Args:
        shape: shape of the tensor. dtype: None: float32.
    """
    import torch

    dtype = dtype or torch.float32
    if not math.prod(shape):
        return torch.empty(shape, dtype=dtype)
    size = dtype.itemsize * math.prod(shape)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).reshape(shape)
