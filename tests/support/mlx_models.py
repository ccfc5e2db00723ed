"""Tiny models as mlx-lm runs them: fp32, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model


def mlx_model(folder: Path, adapter: Path | None = None) -> Any:
    """A Hugging Face directory, as mlx-lm loads it, with an adapter."""
    mx.set_default_device(mx.cpu)
    model, _ = load_model(folder)
    if adapter is not None:
        load_adapters(model, str(adapter))
        model.eval()
    return model


def mlx_logits(model: Any, tokens: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """float32 (rows, length, vocabulary) of integer tokens (rows, length)."""
    return np.array(model(mx.array(np.asarray(tokens))).astype(mx.float32))
