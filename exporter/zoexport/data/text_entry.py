"""Text settings of a model: the manifest's ``text`` (docs/formats.md)."""

from __future__ import annotations

from typing import Any

from zoexport.core.errors import BundleError, DataError, ModelError
from zoexport.session.data import Tokenizer


def text_entry(loaded: Any) -> dict[str, Any]:
    """Return the manifest's ``text`` of a model; empty if the session cannot read its tokenizer.

    Args:
        loaded: a ``zoexport.models.Loaded``.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        return {}
    ends = end_tokens(loaded)
    entry: dict[str, Any] = {"end_tokens": sorted(ends)}
    if ends:
        entry["eos_token"] = ends[0]
    if tokenizer.mask_token is not None:
        entry["mask"] = {"text": str(tokenizer.mask_token), "id": int(tokenizer.mask_token_id)}
    return {"text": {**entry, **chat_entry(tokenizer)}}


def chat_entry(tokenizer: Any) -> dict[str, Any]:
    """Return the members of ``text`` for conversations: ``chat``, or ``no_chat`` with a reason.

    Args:
        tokenizer: a transformers tokenizer with a ``tokenizer.json``.
    """
    if not getattr(tokenizer, "chat_template", None):
        return {"no_chat": "a model whose tokenizer has no chat template"}
    tokens = {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    chat = {"template": tokenizer.get_chat_template(), "tokens": tokens, "end_tokens": []}
    turns = [
        {"role": role, "content": f"\n {role} {number}."}
        for number, role in enumerate(("user", "assistant", "user"))
    ]
    ends: set[int] = set()
    with Tokenizer.parse(
        tokenizer.backend_tokenizer.to_str(),
        max_length=2,
        vocab_size=2**31 - 1,
        text={"end_tokens": [], "chat": chat},
    ) as session:
        for messages in (turns[:1], turns, turns[:2]):
            reply = messages[-1]["role"] == "user"
            # The session first: it terminates for any template, transformers may not.
            try:
                text = session.chat(messages, reply=reply)
            except (BundleError, DataError) as error:
                if len(messages) > 1:
                    continue
                return {
                    "no_chat": f"a chat template that cannot be run: {error.where}: {error.found}"
                }
            if text != _written(tokenizer, messages, reply=reply):
                return {"no_chat": "a chat template that is written otherwise by transformers"}
            answer = turns[1]["content"].strip()
            if answer in text:
                # The special token after an answer ends generation.
                rest = text.rpartition(answer)[2]
                ends.update(tokenizer.encode(rest, add_special_tokens=False)[:1])
    chat["end_tokens"] = sorted(ends & set(tokenizer.all_special_ids))
    return {"chat": chat}


def tokenizer_of(loaded: Any, max_length: int, *, masked: bool = False) -> Tokenizer:
    """Return the session's tokenizer of a loaded model; it appends no end tokens.

    Args:
        loaded: a ``zoexport.models.Loaded`` with a tokenizer.
        max_length: tokens of the longest example.
        masked: whether examples are prompts with a mask token.

    Raises:
        ModelError: the session cannot read the tokenizer.
    """
    entry = text_entry(loaded).get("text")
    where = f"tokenizer of {loaded.name}"
    fix = "Use the model with the tokenizer that its authors publish."
    if entry is None:
        raise ModelError(where, found="no tokenizer.json", expected="a fast tokenizer", fix=fix)
    entry.pop("eos_token", None)
    content = loaded.tokenizer.backend_tokenizer.to_str()
    try:
        return Tokenizer.parse(
            content, max_length=max_length, vocab_size=loaded.vocab_size, text=entry, masked=masked
        )
    except BundleError as error:
        raise ModelError(where, found=error.found, expected=error.expected, fix=fix) from error


def end_tokens(loaded: Any) -> list[int]:
    """Return the tokens that end a text; the first is the one that training appends.

    They are the tokenizer's EOS, which trl appends too, and the tokens at which transformers' ``generate`` stops.

    Args:
        loaded: a ``zoexport.models.Loaded``.
    """
    model = loaded.model
    known = [getattr(loaded.tokenizer, "eos_token_id", None)]
    for config in (getattr(model, "generation_config", None), model.config):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            known += found if isinstance(found, (list, tuple)) else [found]
            break
    tokens = (token for token in known if isinstance(token, int))
    return list(dict.fromkeys(token for token in tokens if 0 <= token < loaded.vocab_size))


def _written(tokenizer: Any, messages: list[dict[str, str]], *, reply: bool) -> str | None:
    """Return the conversation formatted by transformers; None if the template refuses it."""
    from jinja2.exceptions import TemplateError

    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=reply)
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError):
        return None
