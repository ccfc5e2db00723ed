"""``generate``: prompts in, and the text that follows as it comes; adapters that are switched in between.

Text is the session's own (docs/text.md): a process that generates loads none of torch, transformers and tokenizers.
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
    """A text that is continued, or a conversation that is answered.

    Attributes:
        text: as it is; nothing is added but what the tokenizer adds by itself.
        messages: in place of a text, ``{"role", "content"}`` and what else the model's chat template reads.
        tools: what the assistant can call in a conversation, as JSON schemas.
    """

    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, given: Prompt | str | Iterable[Mapping[str, Any]]) -> Prompt:
        """A text, or the messages of a conversation, ``{"role", "content"}``."""
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return cls(given)
        return cls(messages=tuple(given))


class Generator(Closing):
    """An open bundle that continues texts, one after another.

    Use it in a ``with`` statement, from one thread at a time.
    """

    def __init__(self, session: Session, bundle: Bundle) -> None:
        self.session = session
        self.bundle = bundle

    def load_adapter(self, name: str, adapter: Path) -> None:
        """Load what ``adapter export`` wrote under a name, in place of what has it.

        Raises:
            ZoExportError: it does not fit; nothing changes.
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
            ConfigError: there is none of this name.
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
        """Generate what follows a prompt.

        Args:
            prompt: a text, or a conversation; see :func:`generate`.
            adapter: the name of a loaded one, in place of what the state has trained.
            untrained: with the bundle as it was compiled, so with an adapter that it started from.
            off: without any adapter, that one neither.
            max_new_tokens, stop, sampling, keep, sliding, on_text: see :meth:`zoexport.session.Session.generate`.

        Raises:
            ZoExportError: something cannot be used.
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
        """How a session generates without any adapter."""
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
        state: a training state, whose pending update is applied, or a federation's folder; it stays as it is.
        adapters: by name, what ``adapter export`` wrote; :meth:`Generator.load_adapter` takes more of them.
        last: the state's values of the last step, also where the run keeps its best.

    Returns:
        It, for a ``with`` statement.

    Raises:
        ZoExportError: something cannot be used.
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
    """Generate what follows a prompt.

    Args:
        prompt: a text as it is, to which nothing is added but what the tokenizer adds by itself; or the messages of a
            conversation, ``{"role", "content"}``, that is answered.
        state: a training state's folder, which stays as it is; its pending update is applied.
        adapter: what :meth:`zoexport.Bundle.export_adapter` wrote, in place of a state.
        max_new_tokens: that follow at most.
        stop: strings before the first of which the text ends.
        sampling: the most likely token each time where None.
        sliding: past the bundle's context go on over the last part of the tokens (docs/generate.md).
        last: the state's values of the last step, also where the run keeps its best.
        on_text: called with pieces of text as they come.

    Raises:
        ZoExportError: something cannot be used.
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
    """:func:`generate` of several prompts in one session; ``how`` is as :meth:`Generator.generate` takes it."""
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
    """A user's text: a conversation where the bundle's model has a chat template, else the text that is continued.

    Args:
        system: the message that the conversation begins with.
        template: whether the chat template is used. None: unless all that ``state`` learned are texts without it.
        state: that answers.

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
    """What an adapter is called where nobody names it: its folder, or its file without the ending."""
    return adapter.resolve().stem if adapter.is_file() else adapter.resolve().name or "adapter"


def read_prompts(data: Path) -> list[Prompt]:
    """The prompts of a file of JSON Lines with ``prompt`` or ``messages``.

    Raises:
        DataError: it cannot be read, or a line is something else.
    """
    return [prompt_of(line) for line in prompts_of(data)]


def prompt_of(line: Mapping[str, Any]) -> Prompt:
    """The prompt of a line that :func:`zoexport.session.data.prompts_of` gives."""
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
        # The first comes with the prompt.
        decode_tokens_per_second=rate(len(made.tokens) - 1, made.decode_seconds),
        peak_anonymous_mb=round(made.anonymous_bytes / _MEGABYTE, 1) or None,
    )
