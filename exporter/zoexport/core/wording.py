"""Words of messages: flags on the command line, keyword arguments in Python.

Messages are written with flags (``--lora-r 8``, ``--overwrite``); :func:`worded` translates them unless the command
line runs.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

from zoexport.core.keywords import COMPILE, FINETUNE, TRAIN, keyword

_SWITCHES = {
    "allow-fallback",
    "change-settings",
    "force",
    "generate",
    "inner",
    "last",
    "overwrite",
    "recover",
    "signs",
    "sliding",
    "verify",
}
"""Flags without a value."""
_END = r"(?=[,.;:)]*(?:\s|$))"
_FLAG = re.compile(
    r"(?P<command>(['`])zoexport .*?\2)"  # to be run in a shell, also by users of Python
    rf"|(?<![\w/-])--set '?(?P<key>[\w.]+)=(?P<given>\{{.*?\}}|\S+?)'?{_END}"
    r"|(?<![\w/-])--(?P<no>no-)?(?P<flag>[a-z][a-z0-9-]*)"
    rf"(?: (?!(?:and|has|or|out|that|to|with)\b)(?P<value>\w\S*?){_END})?"
)
_DEBUG = " (--debug)"
_on_command_line = False


@contextlib.contextmanager
def command_line() -> Iterator[None]:
    """Leave the flags in messages while this is open."""
    global _on_command_line
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


def worded(text: str) -> str:
    """Return a message with the words of the caller: unchanged on the command line, else with keyword arguments.

    ``--set lora.r=8`` becomes ``lora_r=8``, ``--set eps=1`` becomes ``settings={"eps": 1}``, ``--force`` becomes
    ``force=True``, and ``--method`` becomes ``method=``. A quoted command (``'zoexport sign --generate KEY'``) stays.
    """
    return text if _on_command_line else _FLAG.sub(_keyword, text.replace(_DEBUG, ""))


def _keyword(found: re.Match[str]) -> str:
    if found["command"]:
        return found[0]
    if found["key"]:
        key, value = found["key"], _value(found["given"])
        typed = key in {*COMPILE, *TRAIN, *FINETUNE}
        return f"{keyword(key)}={value}" if typed else f'settings={{"{key}": {value}}}'
    name, value = found["flag"].replace("-", "_"), found["value"]
    if found["flag"] in _SWITCHES:
        return f"{name}={not found['no']}" + (f" {value}" if value else "")
    return f"{name}=" + ("" if value is None else _value(value))


def _value(text: str) -> str:
    """Return the Python literal of a flag's value; ``KEY=VALUE,...`` is a dict, and ``MB`` stands for a value."""
    if re.fullmatch(r"\w+=[^,=]+(,\w+=[^,=]+)*", text):
        return json.dumps(dict(part.split("=") for part in text.split(",")))
    if text in ("true", "false"):
        return text.capitalize()
    if text.startswith("{") or re.fullmatch(r"[-+.\d][-+.e\d]*|[A-Z]+", text):
        return text
    return json.dumps(text, ensure_ascii=False)
