"""Section "JSON keys" of a command's help."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 96
"""Characters of a line; click indents it by two."""
_ENTRY = re.compile(r"(\w+(?:, \w+)*): ")
_ATTRIBUTES = "\nAttributes:\n"


def json_keys(
    *sources: type | str, others: Mapping[str, type | str] | None = None
) -> Callable[[F], F]:
    """Add the keys of ``--json`` to the end of a command's help.

    Args:
        sources: dataclasses whose docstring describes their attributes, and texts of the same
            form: an entry ``key: meaning`` or ``key, key: meaning`` in each line, continued in
            indented lines.
        others: keys of other forms of the command, by the rest of the title.
    """

    def decorate(function: F) -> F:
        parts = [inspect.cleandoc(function.__doc__ or ""), _section("JSON keys:", sources)]
        parts += [
            _section(f"JSON keys {name}:", (source,)) for name, source in (others or {}).items()
        ]
        function.__doc__ = "\n\n".join(part for part in parts if part)
        return function

    return decorate


def entries(source: type | str) -> Iterator[tuple[str, str]]:
    """Yield the keys and the meaning of each entry."""
    if isinstance(source, str):
        text = inspect.cleandoc(source)
    else:
        text = textwrap.dedent((inspect.getdoc(source) or "").partition(_ATTRIBUTES)[2])
    text = re.sub(r"\n +", " ", text).replace("None", "null").replace("True", "true")
    for line in text.splitlines():
        if match := _ENTRY.match(line):
            yield match[1], line[match.end() :].rstrip(".")


def _section(title: str, sources: tuple[type | str, ...]) -> str:
    """Return a title and a list, which is also a list in Markdown."""
    lines = []
    for source in sources:
        for keys, meaning in entries(source):
            lines += textwrap.wrap(f"- {keys}: {meaning}", _WIDTH, subsequent_indent="  ")
    return "\n".join([title, "", "\b", *lines]) if lines else ""
