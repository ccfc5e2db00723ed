"""Save models and tokenizers so that older transformers and other tools can read them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoexport.models.older_readers import AS_WRITTEN, TOKENIZER_CONFIG, write_older_keys

_DEFAULT_TEMPLATE = "default"


def save_folder(model: Any, tokenizer: Any | None, folder: Path) -> None:
    """Write a model, and its tokenizer if there is one, as transformers saves them.

    Args:
        model: model of transformers; its weights are written in its dtype.
        tokenizer: tokenizer of transformers.
        folder: output folder, created if it does not exist.
    """
    model.save_pretrained(folder)
    if tokenizer is not None:
        save_tokenizer(tokenizer, folder)
    write_older_keys(folder)


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into a folder as transformers saves it, with one chat template.

    Some tokenizer classes are rebuilt from their vocabulary when loaded, but not all their settings
    are saved: ``LlamaTokenizer`` loses ``legacy`` and then splits text after a special token
    differently from ``tokenizer.json``. The files of such a tokenizer name the class that uses
    ``tokenizer.json`` unchanged.

    Args:
        tokenizer: tokenizer of transformers.
        folder: output folder, created if it does not exist.
    """
    with _one_template(tokenizer):
        tokenizer.save_pretrained(folder)
    if tokenizer.is_fast and _read_again(folder) != tokenizer.backend_tokenizer.to_str():
        config = folder / TOKENIZER_CONFIG
        content = json.loads(config.read_text("utf-8"))
        content["tokenizer_class"] = AS_WRITTEN
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        config.write_text(f"{text}\n", "utf-8")
    write_older_keys(folder)


def chat_template(tokenizer: Any) -> Any:
    """Return the chat template of a tokenizer.

    Of several, the one called ``default``, else the first.
    """
    found = getattr(tokenizer, "chat_template", None)
    if isinstance(found, dict):
        return found.get(_DEFAULT_TEMPLATE, next(iter(found.values()), None))
    return found


@contextlib.contextmanager
def _one_template(tokenizer: Any) -> Iterator[None]:
    """Give a tokenizer one chat template inside the context: several are saved as files."""
    several = getattr(tokenizer, "chat_template", None)
    if not isinstance(several, dict):
        yield
        return
    tokenizer.chat_template = chat_template(tokenizer)
    try:
        yield
    finally:
        tokenizer.chat_template = several


def _read_again(folder: Path) -> str | None:
    """Return the ``tokenizer.json`` of a reloaded tokenizer, None if it cannot be loaded."""
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    try:
        read = auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers and tokenizers raise bare Exception for what they cannot read
        return None
    return str(read.backend_tokenizer.to_str())
