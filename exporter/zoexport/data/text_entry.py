"""What a bundle says of its model's text: the manifest's ``text`` (docs/text.md)."""

from __future__ import annotations

from typing import Any

from zoexport.data.chat_form import ChatForm, chat_form


def text_entry(loaded: Any) -> dict[str, Any]:
    """The manifest's ``text`` of a loaded model, nothing where it has no tokenizer or the session could not read that.

    Args:
        loaded: a ``zoexport.models.Loaded``.
    """
    tokenizer = loaded.tokenizer
    if tokenizer is None or not tokenizer.is_fast:
        return {}
    entry: dict[str, Any] = {"end_tokens": _end_tokens(loaded)}
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


def _end_tokens(loaded: Any) -> list[int]:
    """After which transformers generates nothing more."""
    known = getattr(getattr(loaded.model, "generation_config", None), "eos_token_id", None)
    if known is None:
        known = loaded.tokenizer.eos_token_id
    tokens = known if isinstance(known, (list, tuple)) else [] if known is None else [known]
    return sorted({int(token) for token in tokens if 0 <= int(token) < loaded.vocab_size})


def _turn_ends(tokenizer: Any, form: ChatForm) -> list[int]:
    """The special token that the template writes behind an answer."""
    texts = [
        *form.between.get("assistant", {}).values(),
        *([form.answer.end] if form.answer else []),
    ]
    first = {tuple(tokenizer.encode(text, add_special_tokens=False)[:1]) for text in texts}
    special = set(tokenizer.all_special_ids)
    return sorted(token for tokens in first for token in tokens if token in special)
