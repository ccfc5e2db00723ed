"""``zoexport chat``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zoexport.cli import options
from zoexport.cli.console import output_of_libraries
from zoexport.cli.keys import json_keys
from zoexport.run.results import Generated

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.run.chat import Chat
    from zoexport.session import Sampling


@click.command()
@options.bundle
@click.option("--state", type=options.PATH, help="Training state whose weights are used.")
@click.option(
    "--adapter",
    "adapters",
    metavar="[NAME=]PATH",
    multiple=True,
    help="Exported adapter, called NAME or like its folder; may be repeated.",
)
@click.option("--system", help="System message of the conversation.")
@options.stop
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Maximum tokens of a response.",
)
@options.sampling
@options.common
@json_keys(
    Generated,
    """
    adapter: name of the adapter; None for the model without an adapter
    """,
)
def chat(
    bundle: Bundle,
    state: Path | None,
    adapters: tuple[str, ...],
    system: str | None,
    stop: tuple[str, ...],
    max_new_tokens: int,
    sampling: Sampling,
    as_json: bool,
) -> None:
    """Chat with BUNDLE, one line per message.

    \b
        /adapter          list the adapters
        /adapter NAME     use this adapter, in its own conversation; 'state' is that of --state
        /adapter off, on  use the model without any adapter; use the previous adapter again
        /reset            start a new conversation
        /help, /quit      list the commands; end

    Only responses go to standard output. Piped messages are answered one after another. A message
    that exceeds the context is an error, and the conversation goes on without it. Ctrl-C ends a
    response. --json prints one object per response.

    \b
        zoexport chat model.bundle --state run
        zoexport chat model.bundle --adapter pirate=adapters/1 --adapter formal=adapters/2 \\
            --temperature 0.7
        printf 'Hello\\n/adapter off\\nHello\\n' | zoexport chat model.bundle --state run
    """
    from zoexport.run.chat import Chat, named

    loaded = named(adapters)
    with output_of_libraries():
        generator = bundle.generator(state=state, adapters=loaded)
    with generator:
        talk = Chat(
            generator,
            trained=state is not None,
            system=system,
            max_new_tokens=max_new_tokens,
            stop=stop,
            sampling=sampling,
        )
        _talk(talk, as_json=as_json)


def _talk(chat: Chat, *, as_json: bool) -> None:
    from zoexport.core.errors import ConfigError, DataError

    note(chat.command("/adapter") or "")
    for line in _lines():
        if not line.strip():
            continue
        try:
            if line.startswith("/"):
                said = chat.command(line)
                if said is None:
                    return
                note(said)
            else:
                _answer(chat, line, as_json=as_json)
        except (ConfigError, DataError) as error:
            # The conversation goes on: the next line may be another one.
            note(f"error: {error}")


def _answer(chat: Chat, line: str, *, as_json: bool) -> None:
    def say(text: str) -> None:
        print(text, end="", flush=True)

    try:
        made = chat.ask(line, on_text=None if as_json else say)
    except KeyboardInterrupt:
        print(flush=True)
        note("Interrupted; the message does not count.")
        return
    print(json.dumps(made, allow_nan=False) if as_json else "", flush=True)
    short = chat.cut_short(made)
    if short is not None:
        note(short)


def _lines() -> Iterator[str]:
    """Yield the lines of the user, with a prompt if standard input is a terminal."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    note("/help lists the commands.")
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return


def note(text: str) -> None:
    """Print a message that is not a response."""
    print(text, file=sys.stderr, flush=True)
