"""Settings that are flags of a command and keyword arguments of its Python function.

A setting ``lora.r`` is the flag ``--lora-r`` and the keyword ``lora_r``. All others are given by ``--set`` and by
``settings={...}``. ``tests/contract/test_keywords.py`` compares commands and functions with these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMPILE = ("max_length", "batch_size", "lora.r", "lora.alpha", "weights", "soc")
TRAIN = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "gradient_accumulation_steps",
    "seed",
)
FINETUNE = ("learning_rate", "batch_size", "lora.r", "max_length")


def keyword(key: str) -> str:
    """Return the keyword argument of a setting: ``lora_r`` for ``lora.r``."""
    return key.replace(".", "_")


def given(settings: Mapping[str, Any] | None, **named: Any) -> dict[str, Any]:
    """Return a dict of settings and keyword arguments; arguments that are not None override the dict."""
    return {
        **(settings or {}),
        **{name: value for name, value in named.items() if value is not None},
    }
