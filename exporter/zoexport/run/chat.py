"""``chat``: a multi-turn conversation with a bundle and switchable adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import BundleError, ConfigError, nearest
from zoexport.run.generate import Generator, Prompt
from zoexport.session import OnText, Sampling

HELP = """\
/adapter        the adapters, and which one answers
/adapter off    answer with the model without any adapter
/adapter on     answer with what answered before
/adapter NAME   answer with this adapter; each has a conversation of its own
/reset          forget the conversation
/help           this list
/quit           end (Ctrl-D too)"""
STATE = "state"
"""What the adapter that a state has trained is called."""
_RESET = "Type /reset to begin a new conversation."


class Chat:
    """A conversation with an open bundle.

    Args:
        generator: generator of the bundle.
        trained: whether the generator has the trained weights of a state.
        system: system message of the conversation, or None.
        max_new_tokens, stop, sampling: generation options of each answer.

    Raises:
        BundleError: the model has no chat template.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        trained: bool,
        system: str | None = None,
        max_new_tokens: int = 256,
        stop: Sequence[str] = (),
        sampling: Sampling | None = None,
    ) -> None:
        text = generator.bundle.manifest.get("text", {})
        if "chat" not in text:
            raise BundleError(
                "chat",
                found=text.get("no_chat", "a bundle without a chat template"),
                expected="a model with a chat template",
                fix="Use 'zoexport generate', or compile the chat version of the model.",
            )
        self._generator = generator
        self._system = () if system is None else (_said("system", system),)
        self._options: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "stop": tuple(stop),
            "sampling": sampling,
        }
        self.names = ((STATE,) if trained else ()) + generator.adapters
        self.adapter: str | None = self.names[0] if self.names else None
        """That answers; None: none."""
        self._before = self.adapter
        self._histories: dict[str | None, list[dict[str, str]]] = {}

    @property
    def turns(self) -> list[dict[str, str]]:
        """Messages of the current adapter: each adapter has its own conversation."""
        return self._histories.setdefault(self.adapter, [])

    def ask(self, message: str, on_text: OnText | None = None) -> dict[str, Any]:
        """Answer a message of the conversation: the keys of ``generate --json`` and ``adapter``.

        Raises:
            ConfigError: the conversation exceeds the bundle's context; it is not changed.
            ZoExportError: see :meth:`zoexport.run.generate.Generator.generate`.
        """
        turns = (*self._system, *self.turns, _said("user", message))
        named = self.adapter if self.adapter in self._generator.adapters else None
        try:
            made = self._generator.generate(
                Prompt(messages=turns),
                adapter=named,
                off=self.adapter is None,
                keep=True,
                on_text=on_text,
                **self._options,
            )
        except ConfigError as error:
            if error.where == "prompt":
                raise ConfigError(
                    "conversation", found=error.found, expected=error.expected, fix=_RESET
                ) from error
            raise
        self.turns.extend([_said("user", message), _said("assistant", made.text)])
        return {**made.as_dict(), "adapter": self.adapter}

    def cut_short(self, made: Mapping[str, Any]) -> str | None:
        """Return a notice if the end of the bundle's context cut the answer short, else None."""
        if made["stop"] != "length" or len(made["tokens"]) >= self._options["max_new_tokens"]:
            return None
        return f"The conversation fills the bundle's context. {_RESET}"

    def command(self, line: str) -> str | None:
        """Execute a command, a line that begins with a slash.

        Returns:
            Text for the user, or None to end the conversation.

        Raises:
            ConfigError: unknown command or adapter.
        """
        command, _, name = line.strip().partition(" ")
        if command in ("/quit", "/exit"):
            return None
        if command == "/help":
            return HELP
        if command == "/reset":
            self._histories.clear()
            return "The conversation begins again."
        if command == "/adapter":
            return self._switch(name.strip())
        commands = ("/adapter", "/reset", "/help", "/quit")
        raise ConfigError(
            f"command {command}",
            found="no such command",
            expected="one of " + ", ".join(commands),
            fix=f"Type /help for what they do.{nearest(command, commands)}",
        )

    def _switch(self, name: str) -> str:
        if name == "off":
            self._before, self.adapter = self.adapter or self._before, None
        elif name == "on":
            self.adapter = self._before
        elif name in self.names:
            self.adapter = name
        elif name:
            raise ConfigError(
                f"adapter {name}",
                found="no such adapter",
                expected="one of " + ", ".join((*self.names, "on", "off")),
                fix=f"Name one of them.{nearest(name, self.names)}",
            )
        if not self.names:
            return "There is no adapter: the model answers without."
        answering = self.adapter or "none, the model without any adapter"
        return f"Answering: {answering}. Adapters: {', '.join(self.names)}."


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def named(adapters: Sequence[str]) -> dict[str, Path]:
    """Return adapters by name, from ``NAME=PATH`` or from paths named by their last part.

    Raises:
        ConfigError: a name is used twice, or is reserved.
    """
    from zoexport.run.generate import name_of

    found: dict[str, Path] = {}
    for given in adapters:
        name, equals, path = given.partition("=")
        if not equals or "/" in name:
            path = given
            name = name_of(Path(given))
        if name in (*found, STATE, "on", "off"):
            raise ConfigError(
                f"adapter {given}",
                found=f"the name {name!r}"
                + (" again" if name in found else ", which means something else"),
                expected="a name of its own",
                fix=f"Write --adapter NAME={path}.",
            )
        found[name] = Path(path)
    return found
