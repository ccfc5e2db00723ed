"""Convert a ``peft.LoraConfig`` to settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from zoexport.core.errors import ConfigError

_TAKEN = {
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "lora_dropout",
    "target_modules",
    "layers_to_transform",
}
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "fan_in_fan_out",  # read off the model
    "inference_mode",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",  # read off the model
}
"""Fields that say nothing of how an adapter trains, or what zoexport finds out itself."""


def settings_of(lora: Any) -> dict[str, Any]:
    """Return the settings of a LoraConfig.

    Args:
        lora: a ``peft.LoraConfig``.

    Raises:
        ConfigError: not a LoraConfig, or it has unsupported fields; the message lists them.
    """
    import peft

    if not isinstance(lora, peft.LoraConfig):
        raise ConfigError(
            "lora",
            found=f"a {type(lora).__name__}",
            expected="a peft.LoraConfig",
            fix="Pass peft.LoraConfig(...), or settings such as lora_r=8.",
        )
    plain = peft.LoraConfig()
    other = [
        f"{field.name}={getattr(lora, field.name)!r}"
        for field in dataclasses.fields(lora)
        if field.name not in _TAKEN | _WITHOUT_EFFECT
        and getattr(lora, field.name) != getattr(plain, field.name)
    ]
    if other:
        raise ConfigError(
            "lora",
            found=", ".join(other),
            expected="LoRA of " + ", ".join(sorted(_TAKEN)),
            fix="Leave these fields out.",
        )
    settings: dict[str, Any] = {"lora.r": lora.r, "lora.alpha": float(lora.lora_alpha)}
    if lora.lora_dropout:
        settings["lora.dropout"] = lora.lora_dropout
    if lora.use_rslora:
        settings["lora.use_rslora"] = True
    for key in ("rank_pattern", "alpha_pattern"):
        if getattr(lora, key):
            settings[f"lora.{key}"] = dict(getattr(lora, key))
    targets = lora.target_modules
    if isinstance(targets, str):
        if targets != "all-linear":
            raise ConfigError(
                "lora",
                found=f"target_modules={targets!r}, a pattern",
                expected="a list of names, 'all-linear', or None for the attention's layers",
                fix="List the names that the pattern matches.",
            )
        settings["lora.target_modules"] = targets
    elif targets is not None:
        settings["lora.target_modules"] = sorted(targets)
    if lora.layers_to_transform is not None:
        settings["lora.layers_to_transform"] = lora.layers_to_transform
    return settings
