"""``zoexport completion``, and the completions of option values in a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from zoexport.core.errors import ZoExportError

PROGRAM = "zoexport"
VARIABLE = "_ZOEXPORT_COMPLETE"
"""Environment variable that the completion script of a shell sets."""
SHELLS = ("bash", "zsh", "fish")

Items = list[CompletionItem[str]]
Complete = Callable[[click.Context, click.Parameter, str], Items]


def answered(group: click.Group, instruction: str) -> int:
    """Print the completions for a shell and return the exit code."""
    try:
        return shell_complete(group, {}, PROGRAM, VARIABLE, instruction)
    except ZoExportError:  # an error here would disturb the command line
        return 1


def named(names: Callable[[click.Context], list[str]]) -> Complete:
    """Return a completion function for names that start with the incomplete word."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
        return [CompletionItem(name) for name in names(context) if name.startswith(incomplete)]

    return complete


def files(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Complete files and folders, for options that also accept other values."""
    return [CompletionItem(incomplete, type="file")]


def methods(_: click.Context) -> list[str]:
    """Return the names of the methods."""
    from zoexport.tools.describe import list_methods

    return [method["name"] for method in list_methods()]


def targets(_: click.Context) -> list[str]:
    """Return the names of the targets."""
    from zoexport.targets import targets as known

    return known.names()


def recipes(_: click.Context) -> list[str]:
    """Return the names of the recipes."""
    from zoexport.core.recipes import known

    return list(known())


def shapes(_: click.Context) -> list[str]:
    """Return the names of the published configurations."""
    from zoexport.models.shapes import known

    return list(known())


def settings(context: click.Context) -> list[str]:
    """Return the keys of ``--set``: those of the method on the command line, or of all methods."""
    from zoexport.tools.describe import list_methods

    found = list_methods()
    named = [method for method in found if method["name"] == context.params.get("method")]
    return sorted({f"{entry['key']}=" for method in named or found for entry in method["settings"]})


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, methods, recipes and settings in SHELL.

    \b
        zoexport completion bash > ~/.local/share/bash-completion/completions/zoexport
        zoexport completion zsh > ~/.zfunc/_zoexport            # of a folder in fpath
        zoexport completion fish > ~/.config/fish/completions/zoexport.fish
    """
    kind: Any = get_completion_class(shell)
    sys.stdout.write(kind(click.Group(PROGRAM), {}, PROGRAM, VARIABLE).source())
