"""The session's tokenizer beside transformers'."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.tokenizers import random_text
from zoexport.session import Bundle
from zoexport.session.data import Tokenizer


def ends_of(bundle: Path) -> list[int]:
    """The end tokens of a bundle, the one that training appends first; none if it appends none."""
    text = Bundle.open(bundle).manifest["text"]
    return [text["eos_token"], *text["end_tokens"]] if "eos_token" in text else []


def compare(ours: Tokenizer, theirs: Any, *, texts: int, seed: int) -> None:
    """Tokens of random texts, and texts of those and of random tokens, with special tokens and without."""
    generator = random.Random(seed)
    named = list(theirs.get_added_vocab())[:40]
    for number in range(texts):
        text = random_text(generator, named)
        special = number % 2 == 0
        tokens = theirs(text, add_special_tokens=special)["input_ids"]
        assert ours.encode(text, special=special) == tokens, ascii(text)
        if number % 3 == 0:
            tokens = [generator.randrange(len(theirs)) for _ in range(generator.randint(0, 20))]
        decoded = theirs.decode(
            tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        assert ours.decode(tokens, special=special) == decoded, tokens
