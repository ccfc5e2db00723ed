"""Sizes that configurations have under many names, under one each."""

from __future__ import annotations

from typing import Any


def sizes(config: Any) -> Any:
    """optimum's view of a language model's configuration; of one that also describes images, of its text model.

    Returns:
        ``num_layers``, ``hidden_size``, ``num_attention_heads`` and ``vocab_size``, and whatever else the configuration
        has, under its own name. What it has not is an AttributeError, so that getattr's default works.
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
    """How many heads the attention of a language model has: of ``queries``, and of ``keys``.

    Returns:
        None where the configuration does not say, or not the same of every layer.
    """
    found = sizes(config)
    queries: Any = getattr(found, "num_attention_heads", None)
    keys: Any = getattr(found, "num_key_value_heads", None)
    heads = {"queries": queries, "keys": queries if keys is None else keys}
    return heads if all(type(count) is int and count > 0 for count in heads.values()) else None
