"""Prompts with a mask token to examples, for masked language models.

The prompt is tokenized as the tokenizer is configured, with its special tokens. Its one mask token stands for the
completion: it is repeated once for each of the completion's tokens, and these are the labels, each at its own mask.
Longer than the sequence length: tokens are dropped from the prompt's start, after the special tokens that lead it, then
from its end, before those that close it; of an example with choices as many as its longest choice needs, so that all
are scored in the same text. A mask is never dropped.
"""

from __future__ import annotations

import itertools
from typing import Any

from zoexport.core.errors import DataError, ModelError
from zoexport.data.records import CompletionRecord, Record


def mask_token(tokenizer: Any) -> tuple[str, int]:
    """The tokenizer's mask token, as it is written and as a number.

    Raises:
        ModelError: it has none.
    """
    if tokenizer.mask_token is None:
        raise ModelError(
            "tokenizer of the bundle",
            found="no mask token",
            expected="the tokenizer of a masked language model",
            fix="Compile the model with its own tokenizer.",
        )
    return str(tokenizer.mask_token), int(tokenizer.mask_token_id)


def with_completion(record: Record, tokenizer: Any) -> CompletionRecord:
    """``record``, if it is a prompt for a masked language model.

    Raises:
        DataError: it is a text or a conversation, or its prompt has no mask token, or several.
    """
    mask, _ = mask_token(tokenizer)
    fix = f'Write {{"prompt": "... It was {mask}.", "completion": "great"}}, with "choices" where some are compared.'
    if not isinstance(record, CompletionRecord):
        raise DataError(
            record.where,
            found="an example without a prompt, for a masked language model",
            expected=f"a prompt in which {mask} stands for the completion",
            fix=fix,
        )
    count = record.prompt.count(mask)
    if count != 1:
        raise DataError(
            record.where,
            found=f"{count or 'no'} mask token{'s' if count > 1 else ''} in the prompt",
            expected=f"{mask} once, where the completion stands",
            fix=fix,
        )
    return record


class Masked:
    """A prompt's tokens, and where in them its mask is.

    Args:
        where: the example's place, for messages.
        tokens: of the prompt, special tokens included.
        tokenizer: transformers' tokenizer.
    """

    def __init__(self, where: str, tokens: list[int], tokenizer: Any) -> None:
        mask, self.mask = mask_token(tokenizer)
        if tokens.count(self.mask) != 1:
            raise DataError(
                where,
                found=f"a prompt whose {mask} the tokenizer does not take for its mask token",
                expected="one mask token among its tokens",
                fix=f"Write {mask} as a word of its own.",
            )
        place = tokens.index(self.mask)
        special = {*tokenizer.all_special_ids} - {self.mask}
        before, after = tokens[:place], tokens[place + 1 :]
        lead = len(list(itertools.takewhile(special.__contains__, before)))
        close = len(list(itertools.takewhile(special.__contains__, reversed(after))))
        self.lead, self.before = before[:lead], before[lead:]
        self.after, self.close = after[: len(after) - close], after[len(after) - close :]
        self.where = where

    def shortened(self, room: int) -> bool:
        """Drop tokens until at most ``room`` are left beside the masks; whether any was.

        Raises:
            DataError: the special tokens alone are more.
        """
        excess = len(self.lead) + len(self.before) + len(self.after) + len(self.close) - room
        if excess <= 0:
            return False
        if excess > len(self.before) + len(self.after):
            raise DataError(
                self.where,
                found="a completion that leaves no room for the tokenizer's special tokens",
                expected="masks and special tokens that fit seq_len together",
                fix="Give a shorter completion, or compile with a larger seq_len.",
            )
        first = min(excess, len(self.before))
        self.before = self.before[first:]
        self.after = self.after[: len(self.after) - (excess - first)]
        return True

    def filled(self, completion: list[int], ignored: int) -> tuple[list[int], list[int]]:
        """Tokens with a mask for each of the completion's, and labels, ``ignored`` but at the masks."""
        begin, end = [*self.lead, *self.before], [*self.after, *self.close]
        tokens = [*begin, *[self.mask] * len(completion), *end]
        return tokens, [*[ignored] * len(begin), *completion, *[ignored] * len(end)]
