"""A tokenizer's files, from which transformers reads the same tokenizer again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_CONFIG = "tokenizer_config.json"
_AS_WRITTEN = "PreTrainedTokenizerFast"
"""The class that takes ``tokenizer.json`` as it is; transformers 5 and older ones know it by this name."""


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer into a folder as transformers saves it.

    Some classes of transformers are built anew from their vocabulary when they are read, by settings of which not all
    are saved: ``LlamaTokenizer`` forgets ``legacy``, and then cuts texts behind a special token in another way than the
    model's tokenizer did, and than ``tokenizer.json`` says. Files of such a one name the class that follows that file.

    Args:
        tokenizer: of transformers.
        folder: is made if it does not exist.
    """
    tokenizer.save_pretrained(folder)
    if tokenizer.is_fast and _read_again(folder) != tokenizer.backend_tokenizer.to_str():
        config = folder / _CONFIG
        content = json.loads(config.read_text("utf-8"))
        content["tokenizer_class"] = _AS_WRITTEN
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        config.write_text(f"{text}\n", "utf-8")


def _read_again(folder: Path) -> str | None:
    """What its ``tokenizer.json`` would be, None where its class cannot be read."""
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    try:
        read = auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers and tokenizers raise bare Exception for what they cannot read
        return None
    return str(read.backend_tokenizer.to_str())
