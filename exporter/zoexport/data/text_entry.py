"""What a bundle says of its model's text: the manifest's ``text`` (docs/text.md)."""

from __future__ import annotations

from typing import Any

from zoexport.core.errors import BundleError, ModelError
from zoexport.data.chat_form import ChatForm, chat_form
from zoexport.session.data import Tokenizer


def text_entry(loaded: Any) -> dict[str, Any]:
    """The manifest's ``text`` of a loaded model, nothing where it has no tokenizer or the session could not read that.

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
    if getattr(tokenizer, "chat_template", None):
        form = chat_form(tokenizer)
        if isinstance(form, str):
            entry["no_chat"] = form
        else:
            entry["chat"] = {**form.as_dict(), "end_tokens": _turn_ends(tokenizer, form)}
    else:
        entry["no_chat"] = "a model whose tokenizer has no chat template"
    return {"text": entry}


def tokenizer_of(loaded: Any, max_length: int, *, masked: bool = False) -> Tokenizer:
    """The session's tokenizer of a loaded model, which appends no end tokens.

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


def _turn_ends(tokenizer: Any, form: ChatForm) -> list[int]:
    """The special token that the template writes behind an answer."""
    texts = [
        *form.between.get("assistant", {}).values(),
        *([form.answer.end] if form.answer else []),
    ]
    first = {tuple(tokenizer.encode(text, add_special_tokens=False)[:1]) for text in texts}
    special = set(tokenizer.all_special_ids)
    return sorted(token for tokens in first for token in tokens if token in special)
