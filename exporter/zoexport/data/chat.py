"""Conversations as text: the tokenizer's chat template, and where the last assistant turn begins in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoexport.core.errors import DataError, first_line
from zoexport.data.records import ChatRecord


def render(tokenizer: Any, record: ChatRecord) -> tuple[str, int]:
    """The conversation through the chat template.

    Returns:
        The text, and the index of the first character of the last assistant turn. The header that the template
        writes to start an assistant turn (the generation prompt) comes before that index.

    Raises:
        DataError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(
            record.where,
            found="'messages', and a tokenizer without a chat template",
            expected="a model whose tokenizer has a chat template",
            fix='Use {"prompt", "completion"} lines, or the chat version of the model.',
        )
    messages = list(record.messages)
    text = _apply(tokenizer, messages, record.where)
    return text, _start_of_last_turn(tokenizer, messages, text, record.where)


def _start_of_last_turn(
    tokenizer: Any, messages: list[dict[str, Any]], text: str, where: str
) -> int:
    if len(messages) > 1:
        try:
            prompt = _apply(tokenizer, messages[:-1], where, generation_prompt=True)
        except DataError:
            # Some templates insist on what only the whole conversation has.
            prompt = None
        if prompt is not None and text.startswith(prompt):
            return len(prompt)
    # The generation prompt is no prefix (it opens a <think> block, or the template writes a default system turn
    # for an empty conversation). Render again with another content: the texts part where the content begins.
    content = str(messages[-1]["content"]).lstrip()
    other = "a" if content[0] != "a" else "b"
    changed = _apply(tokenizer, [*messages[:-1], {**messages[-1], "content": other}], where)
    return _common_prefix(text, changed)


def _common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """How many leading elements two sequences share."""
    for index, (left, right) in enumerate(zip(first, second, strict=False)):
        if left != right:
            return index
    return min(len(first), len(second))


def _apply(
    tokenizer: Any, messages: list[dict[str, Any]], where: str, *, generation_prompt: bool = False
) -> str:
    from jinja2.exceptions import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation_prompt
            )
        )
    except (TemplateError, TypeError, ValueError, KeyError) as error:
        raise DataError(
            where,
            found=f"a conversation that the chat template refuses ({first_line(error)})",
            expected="roles, and an order of turns, that the model's chat template takes",
            fix="Correct the roles of the messages.",
        ) from error


def tokenize(tokenizer: Any, rendered: list[tuple[str, int]]) -> list[tuple[list[int], int]]:
    """Rendered conversations as tokens.

    The template writes the special tokens itself, so that none is added here. A token that reaches across the
    start of the last turn belongs to the turn: it holds characters that must be learned.

    Returns:
        For each conversation its tokens and the index of the last turn's first token.
    """
    if not rendered:
        return []
    texts = [text for text, _ in rendered]
    if tokenizer.is_fast:
        encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        return [
            (tokens, next((i for i, (_, end) in enumerate(spans) if end > start), len(tokens)))
            for tokens, spans, (_, start) in zip(
                encoded["input_ids"], encoded["offset_mapping"], rendered, strict=True
            )
        ]
    # Tokenizers without offsets (sentencepiece in Python): where the tokens of the prompt alone part from these.
    whole = tokenizer(texts, add_special_tokens=False)["input_ids"]
    prompts = tokenizer([text[:start] for text, start in rendered], add_special_tokens=False)
    return [
        (tokens, _common_prefix(tokens, prompt))
        for tokens, prompt in zip(whole, prompts["input_ids"], strict=True)
    ]
