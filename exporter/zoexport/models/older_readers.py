"""Make folders that transformers 5 saved readable for transformers 4, mlx-lm and llama.cpp's converter.

Version 5 keeps everything about rotary embeddings under ``rope_parameters``. Older readers look for ``rope_theta``,
``rope_scaling`` and others at the top level, and silently use their defaults if these keys are missing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoexport.core.files import atomic_file

CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
AS_WRITTEN = "PreTrainedTokenizerFast"
"""Tokenizer class that uses ``tokenizer.json`` unchanged; every version of transformers has it."""
_BACKEND = "TokenizersBackend"
_FULL, _SLIDING = "full_attention", "sliding_attention"
_SHARED = ("rope_theta", "rope_local_base_freq")
_BASES = {
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "modernbert-decoder": ("global_rope_theta", "local_rope_theta"),
}
"""Key names of the RoPE bases of full and sliding attention, for model types with special names."""
_NEOX = ("gpt_neox", "gpt_neox_japanese")
_SCALING_KEYS = {
    "phi3": ("type", "short_factor", "long_factor"),
    "phimoe": (
        "type",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
        "original_max_position_embeddings",
    ),
}
"""Model types of transformers 4 that refuse a ``rope_scaling`` with any other key."""


def write_older_keys(folder: Path) -> None:
    """Add the keys of older readers to a folder's ``config.json`` and ``tokenizer_config.json``.

    Files that already have them, and missing files, are left unchanged.

    Raises:
        ConfigError: the folder cannot be written.
    """
    for name, add in ((CONFIG, _with_older_keys), (TOKENIZER_CONFIG, _older_tokenizer)):
        path = folder / name
        if not path.is_file():
            continue
        content = json.loads(path.read_text("utf-8"))
        changed = add(content)
        if changed != content:
            text = json.dumps(changed, indent=2, sort_keys=True, ensure_ascii=False)
            with atomic_file(path) as temporary:
                temporary.write_text(f"{text}\n", "utf-8")


def _older_tokenizer(content: Mapping[str, Any]) -> dict[str, Any]:
    """Name the class and the additional special tokens as transformers 4 does; version 5 reads both."""
    changed = dict(content)
    if changed.get("tokenizer_class") == _BACKEND:
        changed["tokenizer_class"] = AS_WRITTEN
    if isinstance(changed.get("extra_special_tokens"), list):  # transformers 4 expects an object
        changed["additional_special_tokens"] = changed.pop("extra_special_tokens")
    return changed


def _with_older_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with older keys, if transformers 5 still reads the same model from it."""
    content = {
        name: _with_older_keys(value)
        if name.endswith("_config") and isinstance(value, dict) and "model_type" in value
        else value
        for name, value in content.items()
    }
    older = _older_keys(content)
    expected = _read(content)
    if expected is None:
        return content
    if _read({**older, **content}) != expected:
        older.pop("rope_scaling", None)
        if _read({**older, **content}) != expected:
            return content
    return {**older, **content}


def _older_keys(content: Mapping[str, Any]) -> dict[str, Any]:
    older: dict[str, Any] = {}
    if "dtype" in content:
        older["torch_dtype"] = content["dtype"]
    if "num_local_experts" in content:
        older["num_experts"] = content["num_local_experts"]
    older |= _pattern(content.get("layer_types"))
    rope, model_type = content.get("rope_parameters"), str(content.get("model_type"))
    if not isinstance(rope, dict):
        return older
    full, local = rope, None
    if isinstance(rope.get(_FULL), dict):
        full, local = rope[_FULL], rope.get(_SLIDING)
    if "rope_theta" not in full:  # absent, or per layer type in another form
        return older
    names = _BASES.get(model_type, _SHARED)
    older[names[0]] = full["rope_theta"]
    if isinstance(local, dict) and "rope_theta" in local:
        older[names[1]] = local["rope_theta"]
    share = full.get("partial_rotary_factor")
    if share is not None:
        older["partial_rotary_factor"] = share
    if model_type in _NEOX:
        older["rotary_emb_base"] = full["rope_theta"]
        older["rotary_pct"] = share if share is not None else 1.0
    older["rope_scaling"] = _scaling(full, model_type)
    return older


def _scaling(rope: Mapping[str, Any], model_type: str) -> dict[str, Any] | None:
    """Return ``rope_scaling`` in the form of transformers 4; None without scaling."""
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return None
    outside = ("rope_theta", "partial_rotary_factor")
    scaling = {
        name: value for name, value in rope.items() if name not in outside and value is not None
    }
    scaling |= {"type": kind, "rope_type": kind}
    keys = _SCALING_KEYS.get(model_type)
    return scaling if keys is None else {key: scaling[key] for key in keys if key in scaling}


def _pattern(layer_types: Any) -> dict[str, int]:
    """Return ``sliding_window_pattern`` if every N-th layer, and no other, has full attention."""
    if not isinstance(layer_types, list) or set(layer_types) != {_FULL, _SLIDING}:
        return {}
    period = layer_types.index(_FULL) + 1
    expected = [_SLIDING if (i + 1) % period else _FULL for i in range(len(layer_types))]
    return {"sliding_window_pattern": period} if layer_types == expected else {}


def _read(content: Mapping[str, Any]) -> Any:
    """Return the values that transformers 5 reads from ``content`` for the model.

    None if it cannot.
    """
    from transformers import CONFIG_MAPPING

    try:
        kind = CONFIG_MAPPING[str(content["model_type"])]
        config = kind.from_dict(copy.deepcopy(dict(content)))
    except Exception:  # validation of a configuration raises many types
        return None
    return [
        (
            _plain(getattr(one, "rope_parameters", None)),
            getattr(one, "layer_types", None),
            one.dtype,
        )
        for one in (config, config.get_text_config())
    ]


def _plain(rope: Any) -> Any:
    """Return RoPE parameters without absent values and the older name of ``rope_type``."""
    if not isinstance(rope, Mapping):
        return rope
    return {
        name: _plain(value)
        for name, value in rope.items()
        if value is not None and not (name == "type" and "rope_type" in rope)
    }
