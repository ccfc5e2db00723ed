"""Sizes that configurations have under many names, under one each."""

from __future__ import annotations

from typing import Any


def sizes(config: Any) -> Any:
    """Return optimum's view of a configuration, or of its text model if it also describes images.

    Returns:
        ``num_layers``, ``hidden_size``, ``num_attention_heads``, ``vocab_size`` and all other
        fields by their own names. Missing fields raise AttributeError, so getattr's default works.
    """
    from optimum.utils.normalized_config import NormalizedConfigManager, NormalizedTextConfig

    text = config.get_text_config()
    try:
        kind = NormalizedConfigManager.get_normalized_config_class(text.model_type)
    except KeyError:
        # optimum has no entry for Cohere, Gemma 2 and 3, StableLM, StarCoder 2 and others. Entries say which names a
        # model type has of its own; the plain names are right as well, since transformers maps them to those (its
        # configurations' attribute_map), and NormalizedTextConfig asks for these.
        kind = NormalizedTextConfig
    return kind(text)


def attention_heads(config: Any) -> dict[str, int] | None:
    """Return the number of attention heads of a language model, for ``queries`` and ``keys``.

    Returns:
        None if the configuration does not specify them, or if layers differ.
    """
    found = sizes(config)
    try:
        queries: Any = getattr(found, "num_attention_heads", None)
        keys: Any = getattr(found, "num_key_value_heads", None)
    except RuntimeError:  # transformers raises a class of its own if layers differ
        return None
    heads = {"queries": queries, "keys": queries if keys is None else keys}
    return heads if all(type(count) is int and count > 0 for count in heads.values()) else None
