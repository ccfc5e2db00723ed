"""JSON that someone else wrote, read as the session reads it: no two readers of a file see different things in it.

Refused, here and in ``runtime_ops/session/storage/json_reader.cpp``: what is not JSON (RFC 8259) in UTF-8, more than
:data:`MOST_NESTED` lists and objects inside one another, more than :data:`LONGEST` bytes, a name that an object has
twice, whole numbers beyond 64 bits, and numbers beyond a double. So ``NaN``, halves of surrogate pairs and a byte order
mark are refused too.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

MOST_NESTED = 64
LONGEST = 100 << 20
"""Bytes of a document: the limit of safetensors' headers."""
_MARK = "\ufeff"
# Suspicious literals; documents without them take the fast path of the parser itself.
_LONG_INT = re.compile(r"[0-9]{19}")
_LARGE_FLOAT = re.compile(r"[eE]\+?0*[0-9]{3}|[0-9]{200}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BadJsonError(ValueError):
    """A document that is refused; its text says what was found."""


def parse(content: bytes | str, *, constants: bool = False) -> Any:
    """Parse a JSON document.

    Args:
        content: of the whole file or line.
        constants: whether ``NaN`` and ``Infinity`` are numbers, as transformers writes them.

    Raises:
        BadJsonError: the document is refused.
    """
    size = len(content)
    if size > LONGEST:
        raise BadJsonError(f"{size} bytes, more than {LONGEST}")
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise BadJsonError(f"the byte 0x{byte:02x} that is not UTF-8") from error
    if not content:
        raise BadJsonError("an empty document")
    if content.startswith(_MARK):
        raise BadJsonError("bad JSON (a byte order mark)")
    hooks: dict[str, Any] = {}
    if _LARGE_FLOAT.search(content):
        hooks["parse_float"] = _float
    if _LONG_INT.search(content):
        hooks["parse_int"] = _int
    if not constants:
        hooks["parse_constant"] = _constant
    try:
        value = json.loads(content, object_pairs_hook=_object, **hooks)
    except BadJsonError:
        raise
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise BadJsonError(f"bad JSON ({error})") from error
    _check_depth(value)
    if _SURROGATE.search(content):
        _check_texts(value)
    return value


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJsonError("a number beyond a double")
    return value


def _int(text: str) -> int:
    # Python gives up on more than 4300 digits with an error of another kind.
    value = int(text) if len(text) <= 20 else None
    if value is None or not -(2**63) <= value < 2**64:
        raise BadJsonError("a whole number beyond 64 bits")
    return value


def _constant(text: str) -> None:
    raise BadJsonError(f"bad JSON ({text} is no number)")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        twice = next(name for name, count in Counter(n for n, _ in members).items() if count > 1)
        raise BadJsonError(f"an object with two members of the name {json.dumps(twice)[:80]}")
    return found


def _too_deep() -> BadJsonError:
    return BadJsonError(f"more than {MOST_NESTED} lists and objects inside one another")


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        inner: list[Any] = []
        nested = False
        for one in level:
            if type(one) is dict:
                inner.extend(one.values())
                nested = True
            elif type(one) is list:
                inner.extend(one)
                nested = True
        depth += nested
        if depth > MOST_NESTED:
            raise _too_deep()
        level = inner


def _check_texts(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadJsonError("an unpaired surrogate") from error
