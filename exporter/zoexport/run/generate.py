"""``generate``: streaming text generation with switchable adapters.

The session tokenizes (docs/formats.md), so torch, transformers and tokenizers are not loaded.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import ConfigError
from zoexport.run.results import Generated
from zoexport.run.states import attach, learned_texts
from zoexport.session import Bundle, Generation, OnText, Sampling, Session
from zoexport.session.abi import Closing
from zoexport.session.data import prompts_of

_MEGABYTE = 1e6
_ASSISTANT = "assistant"
_NONE = "(none)"
"""What the adapter that adds nothing is called."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A text to continue, or a conversation to answer.

    Attributes:
        text: text to continue; only the tokenizer adds special tokens.
        messages: a conversation instead, ``{"role", "content"}`` and other keys of the template.
        tools: functions that the assistant can call in a conversation, as JSON schemas.
    """

    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, given: Prompt | str | Iterable[Mapping[str, Any]]) -> Prompt:
        """Create a prompt from a text or from messages, ``{"role", "content"}``."""
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return cls(given)
        return cls(messages=tuple(given))


class Generator(Closing):
    """An open bundle that generates several texts.

    Use it in a ``with`` statement, from one thread at a time.
    """

    def __init__(self, session: Session, bundle: Bundle) -> None:
        self.session = session
        self.bundle = bundle

    def load_adapter(self, name: str, adapter: Path) -> None:
        """Load an exported adapter under a name; replace an adapter with that name.

        Raises:
            ZoExportError: the adapter does not fit; nothing changes.
        """
        floats = all(slot.passed == "float32" for slot in self.session.slots())
        peft = (adapter / "adapter_model.safetensors").is_file()
        if peft and floats and "adapter_config.json" in self.bundle.manifest["files"]:
            self.session.load_adapter(name, adapter)
            return
        from zoexport.run.transfer import read_adapter

        slots = read_adapter(self.session, self.bundle, adapter)
        if name in self.session.adapters:
            self.session.drop_adapter(name)
        for slot, values in slots.items():
            self.session.write_adapter(name, slot, values)

    def drop_adapter(self, name: str) -> None:
        """Free an adapter.

        Raises:
            ConfigError: no adapter has this name.
        """
        self.session.drop_adapter(name)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded adapters."""
        return tuple(name for name in self.session.adapters if name != _NONE)

    def generate(
        self,
        prompt: Prompt | str | Iterable[Mapping[str, Any]],
        *,
        adapter: str | None = None,
        untrained: bool = False,
        off: bool = False,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
        keep: bool = False,
        sliding: bool = False,
        on_text: OnText | None = None,
    ) -> Generated:
        """Generate a completion.

        Args:
            prompt: a text, or a conversation; see :func:`generate`.
            adapter: name of a loaded adapter to use instead of the state's trained weights.
            untrained: use the bundle as compiled, including an adapter that it started from.
            off: use no adapter at all, not even that one.
            max_new_tokens, stop, sampling, keep, sliding, on_text: see :meth:`zoexport.session.Session.generate`.

        Raises:
            ZoExportError: an input cannot be used.
        """
        given = Prompt.of(prompt)
        made = self.session.generate(
            () if given.messages else given.text,
            messages=given.messages,
            tools=given.tools,
            **(self._without() if off else {"adapter": adapter, "untrained": untrained}),
            max_new_tokens=max_new_tokens,
            stop=stop,
            sampling=sampling,
            keep=keep,
            sliding=sliding,
            on_text=on_text,
        )
        return _result(made)

    def _without(self) -> dict[str, Any]:
        """Return the options of a session for generation without any adapter."""
        halves = [slot for slot in self.session.slots() if slot.name.startswith("lora_B.")]
        if not halves:
            return {"untrained": True}
        if _NONE not in self.session.adapters:
            for slot in halves:
                self.session.write_adapter(_NONE, slot.name, bytes(4 * math.prod(slot.shape)))
        return {"adapter": _NONE}

    def close(self) -> None:
        """Close the bundle."""
        self.session.close()


def generator(
    bundle: Bundle,
    *,
    state: str | os.PathLike[str] | None = None,
    adapters: Mapping[str, str | os.PathLike[str]] | None = None,
    last: bool = False,
) -> Generator:
    """Open the bundle once to generate several texts, with adapters that are switched in between.

    Args:
        state: folder of a training state (with its pending update) or federation; not modified.
        adapters: exported adapters by name; :meth:`Generator.load_adapter` adds more.
        last: use the weights of the last step, even if the run keeps its best ones.

    Returns:
        A generator, for a ``with`` statement.

    Raises:
        ZoExportError: an input cannot be used.
    """
    opened = Generator(bundle.session(), bundle)
    try:
        if state is not None:
            attach(opened.session, Path(state), last=last)
        for name, adapter in (adapters or {}).items():
            opened.load_adapter(name, Path(adapter))
    except BaseException:
        opened.close()
        raise
    return opened


def generate(
    bundle: Bundle,
    prompt: Prompt | str | Iterable[Mapping[str, Any]],
    *,
    state: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    max_new_tokens: int = 128,
    stop: Iterable[str] = (),
    sampling: Sampling | None = None,
    sliding: bool = False,
    last: bool = False,
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Generate a completion.

    Args:
        prompt: text to continue (only the tokenizer adds special tokens), or the messages of a
            conversation to answer, ``{"role", "content"}``.
        state: folder of a training state, with its pending update applied; not modified.
        adapter: an adapter from :meth:`zoexport.Bundle.export_adapter`, instead of a state.
        max_new_tokens: maximum number of generated tokens.
        stop: strings that end the text; it excludes the stop string.
        sampling: None: greedy decoding.
        sliding: continue past the context with the last part of the tokens (docs/export.md).
        last: use the weights of the last step, even if the run keeps its best ones.
        on_text: called with each chunk of generated text.

    Raises:
        ZoExportError: an input cannot be used.
    """
    how: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": tuple(stop)}
    how |= {"sampling": sampling, "sliding": sliding, "on_text": on_text}
    (found,) = generate_each(bundle, [prompt], state=state, adapter=adapter, last=last, **how)
    return found


def generate_each(
    bundle: Bundle,
    prompts: Iterable[Prompt | str | Iterable[Mapping[str, Any]]],
    *,
    state: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
    last: bool = False,
    **how: Any,
) -> Iterator[Generated]:
    """Call :func:`generate` on each prompt in one session; for ``how`` see :class:`Generator`."""
    if state is not None and adapter is not None:
        raise ConfigError(
            "state and adapter",
            found="both",
            expected="one of them",
            fix="Leave one out.",
        )
    adapters = {} if adapter is None else {name_of(Path(adapter)): Path(adapter)}
    with generator(bundle, state=state, adapters=adapters, last=last) as opened:
        for prompt in prompts:
            yield opened.generate(prompt, adapter=next(iter(adapters), None), **how)


def asked(
    bundle: Bundle,
    text: str,
    *,
    system: str | None = None,
    template: bool | None = None,
    state: Path | None = None,
) -> Prompt:
    """Return a user's text as a conversation if there is a chat template, else as plain text.

    Args:
        system: system message of the conversation.
        template: use the chat template. None: unless ``state`` was trained on plain texts only.
        state: training state that generates.

    Raises:
        ConfigError: a system message without a conversation. StateError: the state cannot be read.
    """
    about = bundle.manifest.get("text", {})
    if template is None:
        template = system is not None or state is None or not learned_texts(state)
    if template and "chat" in about:
        first = ({"role": "system", "content": system},) if system is not None else ()
        return Prompt(messages=(*first, {"role": "user", "content": text}))
    if system is not None:
        raise ConfigError(
            "system message",
            found=about.get("no_chat", "a bundle without a chat template")
            if template
            else "no chat template to use",
            expected="a conversation that it begins",
            fix="Leave the system message out, or write it into the prompt.",
        )
    return Prompt(text)


def name_of(adapter: Path) -> str:
    """Return the default name of an adapter: its folder, or its file without the suffix."""
    return adapter.resolve().stem if adapter.is_file() else adapter.resolve().name or "adapter"


def read_prompts(data: Path) -> list[Prompt]:
    """Read the prompts of a JSON Lines file with ``prompt`` or ``messages``.

    Raises:
        DataError: the file cannot be read, or a line is not a prompt.
    """
    return [prompt_of(line) for line in prompts_of(data)]


def prompt_of(line: Mapping[str, Any]) -> Prompt:
    """Return the prompt of a line from :func:`zoexport.session.data.prompts_of`."""
    if "messages" in line:
        return Prompt(messages=tuple(line["messages"]), tools=tuple(line["tools"] or ()))
    return Prompt(line.get("prompt", ""))


def _result(made: Generation) -> Generated:
    def rate(count: int, seconds: float) -> float | None:
        return round(count / seconds, 2) if count > 0 and seconds > 0 else None

    return Generated(
        text=made.text or "",  # never None, as prompts are texts
        tokens=list(made.tokens),
        prompt_tokens=made.prompt_tokens,
        stop=made.stop,
        prefill_tokens_per_second=rate(made.prompt_tokens - made.kept_tokens, made.prefill_seconds),
        # Prefill produces the first token.
        decode_tokens_per_second=rate(len(made.tokens) - 1, made.decode_seconds),
        peak_anonymous_mb=round(made.anonymous_bytes / _MEGABYTE, 1) or None,
    )
