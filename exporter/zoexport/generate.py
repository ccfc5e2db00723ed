"""``generate``: prompts to tokens, the session, and tokens to text as they come.

The process that generates loads the tokenizer alone, and none of torch and transformers, so that its memory is that of
generating.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from zoexport.core import manifest as manifests
from zoexport.core import outside
from zoexport.core.errors import BundleError, ConfigError, DataError, first_line
from zoexport.session import Generation, Sampling, Session

_TOKENIZER = "tokenizer.json"
_MEGABYTE = 1e6
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


def generate(
    bundle: Path,
    prompts: list[str],
    *,
    state: Path | None = None,
    adapter: Path | None = None,
    max_tokens: int = 128,
    sampling: Sampling | None = None,
    on_text: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Generate what follows each prompt, in one session.

    Args:
        bundle: the bundle's folder.
        prompts: as they are; nothing is added but what the tokenizer adds by itself.
        state: a training state, whose pending update is applied; it stays as it is.
        adapter: a folder that ``adapter export`` wrote, in place of a state.
        max_tokens: that follow at most.
        sampling: the most likely token each time where None.
        on_text: called with pieces of text as they come.

    Yields:
        For each prompt the keys of ``generate --json``: text, tokens, prompt_tokens, stop, prefill_tokens_per_second,
        decode_tokens_per_second, peak_anonymous_mb.

    Raises:
        ZoExportError: something cannot be used.
    """
    manifest = manifests.read(bundle)
    if state is not None and adapter is not None:
        raise ConfigError(
            "state and adapter",
            found="both",
            expected="one of them",
            fix="Leave one out.",
        )
    with Session.open(bundle) as session:
        tokenizer = _tokenizer(bundle, manifest)
        if state is not None:
            session.attach(state, read_only=True)
        if adapter is not None:
            _load(session, bundle, manifest, adapter)
        for prompt in prompts:
            text = _Text(tokenizer, on_text)
            made = session.generate(
                tokenizer.encode(prompt).ids,
                max_tokens=max_tokens,
                sampling=sampling,
                on_token=text.add,
            )
            yield _result(made, text.end())


def read_prompts(data: Path) -> list[str]:
    """The prompts of a file of JSON Lines with ``prompt``.

    Raises:
        DataError: it cannot be read, or a line is something else.
    """
    found = []
    try:
        with data.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_prompt(line, f"{data}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            str(data),
            found=first_line(error),
            expected="a file of JSON Lines",
            fix="Check the path.",
        ) from error
    if not found:
        raise DataError(
            str(data), found="no lines", expected='lines of {"prompt": "..."}', fix="Add prompts."
        )
    return found


def _prompt(line: str, where: str) -> str:
    try:
        record = outside.parse(line)
    except outside.BadJsonError as error:
        raise DataError(
            where, found=first_line(error), expected="a line of JSON", fix="Correct the line."
        ) from error
    prompt = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(prompt, str):
        raise DataError(
            where,
            found="no text under 'prompt'",
            expected='{"prompt": "..."}',
            fix="Give the text that is to be continued.",
        )
    return prompt


def _tokenizer(bundle: Path, manifest: dict[str, Any]) -> Any:
    if _TOKENIZER not in manifest["tokenizer"]:
        raise BundleError(
            str(bundle),
            found=f"no {_TOKENIZER}, but {', '.join(manifest['tokenizer']) or 'no tokenizer'}",
            expected="a tokenizer in that file",
            fix="Save the model with transformers' fast tokenizer, and compile it again.",
        )
    from tokenizers import Tokenizer

    with manifests.checked_file(bundle, manifest, _TOKENIZER) as file:
        return Tokenizer.from_file(str(file))


def _load(session: Session, bundle: Path, manifest: dict[str, Any], adapter: Path) -> None:
    """The slots of a session as an adapter's files have them."""
    from zoexport.transfer import read_adapter

    for name, values in read_adapter(session, bundle, manifest, adapter).items():
        session.write_slot(name, values)


class _Text:
    """Text of tokens that come one by one.

    Args:
        tokenizer: of the bundle. on_text: called with what is known of the text whatever follows.
    """

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        self.tokenizer = tokenizer
        self.on_text = on_text
        self.tokens: list[int] = []
        self.said = 0

    def add(self, token: int) -> None:
        """The session's callback."""
        self.tokens.append(token)
        if self.on_text is not None:
            text = self.tokenizer.decode(self.tokens)
            # Bytes of a character may come with several tokens.
            if not text.endswith(_UNFINISHED) and len(text) > self.said:
                self.on_text(text[self.said :])
                self.said = len(text)

    def end(self) -> str:
        """The whole text."""
        text: str = self.tokenizer.decode(self.tokens)
        if self.on_text is not None and len(text) > self.said:
            self.on_text(text[self.said :])
        return text


def _result(made: Generation, text: str) -> dict[str, Any]:
    def rate(count: int, seconds: float) -> float | None:
        return round(count / seconds, 2) if count > 0 and seconds > 0 else None

    return {
        "text": text,
        "tokens": list(made.tokens),
        "prompt_tokens": made.prompt_tokens,
        "stop": made.stop,
        "prefill_tokens_per_second": rate(made.prompt_tokens, made.prefill_seconds),
        # The first comes with the prompt.
        "decode_tokens_per_second": rate(len(made.tokens) - 1, made.decode_seconds),
        "peak_anonymous_mb": round(made.anonymous_bytes / _MEGABYTE, 1) or None,
    }
