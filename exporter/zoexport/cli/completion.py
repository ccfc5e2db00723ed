"""``zoexport completion``, and what options offer to a shell that completes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from zoexport.core.errors import ZoExportError

PROGRAM = "zoexport"
VARIABLE = "_ZOEXPORT_COMPLETE"
"""What the script of a shell sets when it asks."""
SHELLS = ("bash", "zsh", "fish")

Items = list[CompletionItem[str]]
Complete = Callable[[click.Context, click.Parameter, str], Items]


def answered(group: click.Group, instruction: str) -> int:
    """Answer a shell that asks what can follow; the exit code."""
    try:
        return shell_complete(group, {}, PROGRAM, VARIABLE, instruction)
    except ZoExportError:  # a line that cannot be completed is none to explain
        return 1


def named(names: Callable[[click.Context], list[str]]) -> Complete:
    """Names that begin with what is there."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> Items:
        return [CompletionItem(name) for name in names(context) if name.startswith(incomplete)]

    return complete


def files(_: click.Context, __: click.Parameter, incomplete: str) -> Items:
    """Files and folders, for what is not always one."""
    return [CompletionItem(incomplete, type="file")]


def methods(_: click.Context) -> list[str]:
    """The methods' names."""
    from zoexport.tools.describe import list_methods

    return [method["name"] for method in list_methods()]


def targets(_: click.Context) -> list[str]:
    """The targets' names."""
    from zoexport.targets import targets as known

    return known.names()


def recipes(_: click.Context) -> list[str]:
    """The recipes' names."""
    from zoexport.core.recipes import known

    return list(known())


def shapes(_: click.Context) -> list[str]:
    """The names of published configurations."""
    from zoexport.models.shapes import known

    return list(known())


def settings(context: click.Context) -> list[str]:
    """Keys of ``--set``: of the method that the line names so far, or of all."""
    from zoexport.tools.describe import list_methods

    found = list_methods()
    named = [method for method in found if method["name"] == context.params.get("method")]
    return sorted({f"{entry['key']}=" for method in named or found for entry in method["settings"]})


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script with which SHELL completes verbs, options, methods, targets, recipes and settings.

    \b
    zoexport completion bash > ~/.local/share/bash-completion/completions/zoexport
    zoexport completion zsh > ~/.zfunc/_zoexport            # of a folder in fpath
    zoexport completion fish > ~/.config/fish/completions/zoexport.fish
    """
    kind: Any = get_completion_class(shell)
    sys.stdout.write(kind(click.Group(PROGRAM), {}, PROGRAM, VARIABLE).source())
