"""JSON Lines to checked records: what a line means, before any tokenizer sees it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from zoexport.core import outside
from zoexport.core.errors import DataError

SHAPES = (
    '{"text"}, {"prompt", "completion"}, {"prompt", "completion", "choices"}, '
    '{"prompt", "chosen", "rejected"} or {"messages"}'
)
T = TypeVar("T")
_KNOWN = ("text", "prompt", "completion", "choices", "messages", "chosen", "rejected")


@dataclasses.dataclass(frozen=True)
class TextRecord:
    """A text of which every token is a label."""

    where: str
    text: str


@dataclasses.dataclass(frozen=True)
class CompletionRecord:
    """A prompt and the completions to compare; one of them where nothing is compared.

    Attributes:
        completions: at least one, all different.
        target: index of the right one.
        pair: whether they are a chosen and a rejected answer.
    """

    where: str
    prompt: str
    completions: tuple[str, ...]
    target: int
    pair: bool = False


@dataclasses.dataclass(frozen=True)
class ChatRecord:
    """A conversation whose last turn is the assistant's and is what is learned.

    Attributes:
        rejected: of a pair, the conversation with the other last turn.
    """

    where: str
    messages: tuple[dict[str, Any], ...]
    rejected: tuple[dict[str, Any], ...] | None = None


Record = TextRecord | CompletionRecord | ChatRecord


def read_records(path: Path, progress: Callable[[float], None] | None = None) -> Iterator[Record]:
    """The records of a JSON Lines file, one at a time; see :func:`read_lines`."""
    return read_lines(path, parse_line, progress)


def read_lines(
    path: Path,
    parse: Callable[[bytes, str], T],
    progress: Callable[[float], None] | None = None,
    *,
    shapes: str = SHAPES,
) -> Iterator[T]:
    """What the lines of a JSON Lines file hold, one at a time; blank lines are skipped.

    Args:
        path: a UTF-8 file (a byte order mark is allowed).
        parse: a line, and the file's name and the line's number -> what it holds.
        progress: called with the share of the file's bytes that were read, after each percent and at the end.
        shapes: what lines look like, for messages.

    Raises:
        DataError: the file is missing, unreadable or empty, or a line is refused by ``parse``.
    """
    found = False
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            done, reported = 0, 0.0
            for number, raw in enumerate(file, start=1):
                done += len(raw)
                if progress is not None and size and done / size >= reported + 0.01:
                    reported = done / size
                    progress(reported)
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if raw.strip():
                    found = True
                    yield parse(raw, f"{path}:{number}")
        if progress is not None:
            progress(1.0)
    except OSError as error:
        raise DataError(
            f"data {path}",
            found=(error.strerror or str(error)).lower(),
            expected="a readable JSON Lines file",
            fix="Check the path.",
        ) from error
    if not found:
        raise DataError(
            f"data {path}",
            found="no examples",
            expected=f"one JSON object a line: {shapes}",
            fix="Write at least one example.",
        )


def parse_line(raw: bytes, where: str) -> Record:
    """One line as a record.

    Raises:
        DataError: the line is not UTF-8, not JSON, not an object, of no known shape or of wrong types.
    """
    return record_of(parse_object(raw, where), where)


def parse_object(raw: bytes, where: str, shapes: str = SHAPES) -> dict[str, Any]:
    """The object of one line.

    Raises:
        DataError: the line is not UTF-8, not JSON or not an object.
    """
    try:
        content = outside.parse(raw)
    except outside.BadJsonError as error:
        encoding = "not UTF-8" in str(error)
        raise DataError(
            where,
            found=str(error),
            expected="UTF-8 text" if encoding else "one JSON object a line",
            fix="Convert the file to UTF-8." if encoding else "Correct the line.",
        ) from error
    if not isinstance(content, dict):
        raise DataError(
            where,
            found=f"a JSON {_kind(content)}",
            expected=f"an object: {shapes}",
            fix="Write each example as an object.",
        )
    return content


def record_of(content: dict[str, Any], where: str) -> Record:
    """The record that an object is.

    Raises:
        DataError: it is of no known shape, or its values are of other types.
    """
    _refuse_misspelled(content, where)
    pair = "chosen" in content or "rejected" in content
    prompt = ("prompt" in content and not pair) or "completion" in content or "choices" in content
    shapes = [
        name
        for name, is_there in (
            ("text", "text" in content),
            ("prompt", prompt),
            ("pair", pair),
            ("messages", "messages" in content),
        )
        if is_there
    ]
    if len(shapes) != 1:
        keys = ", ".join(map(repr, content)) or "none"
        raise DataError(
            where,
            found=f"the keys {keys}",
            expected=f"exactly one of the shapes {SHAPES}",
            fix="Rename or remove keys so that the line has one of these shapes.",
        )
    if shapes == ["text"]:
        return TextRecord(where, text_of(content, "text", where))
    if shapes == ["messages"]:
        turns = turns_of(content, where)
        _check_answer(turns, where)
        return ChatRecord(where, turns)
    return _pair(content, where) if pair else _completion(content, where)


def _refuse_misspelled(content: dict[str, Any], where: str) -> None:
    # Other keys are allowed (ids, sources), but "choice" for "choices" would change the task silently.
    for key in content:
        if key in _KNOWN:
            continue
        close = difflib.get_close_matches(key.lower(), _KNOWN, n=1, cutoff=0.8)
        if close and close[0] not in content:
            raise DataError(
                where,
                found=f"the key {key!r}",
                expected=f"a key such as {close[0]!r}",
                fix=f"Did you mean {close[0]!r}? If not, rename the key.",
            )
    if "tools" in content:
        raise DataError(
            where,
            found="the key 'tools'",
            expected=f"one of the shapes {SHAPES}",
            fix="Render tool descriptions into the system message and remove the key.",
        )


def _completion(content: dict[str, Any], where: str) -> CompletionRecord:
    prompt = text_of(content, "prompt", where)
    completion = text_of(content, "completion", where)
    if not completion:
        raise DataError(
            where,
            found="an empty 'completion'",
            expected="text to be learned",
            fix="Give the completion, or remove the line.",
        )
    if "choices" not in content:
        return CompletionRecord(where, prompt, (completion,), 0)
    choices = content["choices"]
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise DataError(
            where,
            found=f"'choices' that is {_kind(choices)} and not a list of text",
            expected="a list of completions to compare",
            fix='Write "choices": [" yes", " no"].',
        )
    for choice in choices:
        check_text(choice, "choices", where)
    if len(choices) < 2 or "" in choices or len(set(choices)) < len(choices):
        raise DataError(
            where,
            found=f"the choices {choices!r}",
            expected="at least two different completions, none of them empty",
            fix="Remove repeated and empty choices.",
        )
    if completion not in choices:
        raise DataError(
            where,
            found=f"the completion {completion!r}, which is not among the choices {choices!r}",
            expected="one of the choices, spaces included",
            fix="Make the completion equal to one of the choices.",
        )
    return CompletionRecord(where, prompt, tuple(choices), choices.index(completion))


def _pair(content: dict[str, Any], where: str) -> Record:
    for key in ("chosen", "rejected"):
        if key not in content:
            raise DataError(
                where,
                found=f"no {key!r}",
                expected=f"the keys {SHAPES}",
                fix=f"Add {key!r}.",
            )
    if isinstance(content["chosen"], list) and isinstance(content["rejected"], list):
        return _chat_pair(content, where)
    prompt, chosen, rejected = (
        text_of(content, key, where) for key in ("prompt", "chosen", "rejected")
    )
    if not (chosen and rejected):
        raise DataError(
            where,
            found=f"an empty {'rejected' if chosen else 'chosen'!r}",
            expected="text to be compared",
            fix="Give the answer, or remove the line.",
        )
    if chosen == rejected:
        raise _same_answers(where)
    return CompletionRecord(where, prompt, (chosen, rejected), 0, pair=True)


def _chat_pair(content: dict[str, Any], where: str) -> ChatRecord:
    """A pair of conversations: what ``chosen`` and ``rejected`` have behind the prompt's turns."""
    prompt = turns_of(content, where, "prompt") if "prompt" in content else ()
    conversations = []
    for key in ("chosen", "rejected"):
        conversations.append((*prompt, *turns_of(content, where, key)))
        _check_answer(conversations[-1], f"{where}, {key}")
    chosen, rejected = conversations
    said = [[(turn["role"], turn["content"]) for turn in turns] for turns in conversations]
    if said[0] == said[1]:
        raise _same_answers(where)
    if said[0][:-1] != said[1][:-1]:
        raise DataError(
            where,
            found="conversations that differ before their last turn",
            expected="two answers to the same turns",
            fix='Give the turns before the answers as "prompt".',
        )
    return ChatRecord(where, chosen, rejected)


def _same_answers(where: str) -> DataError:
    return DataError(
        where,
        found="a chosen and a rejected answer that are the same",
        expected="two different answers",
        fix="Remove the line: nothing is preferred in it.",
    )


def _check_answer(messages: tuple[dict[str, Any], ...], where: str) -> None:
    last = messages[-1]
    if last["role"] != "assistant":
        raise DataError(
            where,
            found=f"a last message from {last['role']!r}",
            expected="a last message from 'assistant', which is what is learned",
            fix="End the conversation with the assistant's turn.",
        )
    if not last["content"].strip():
        raise DataError(
            where,
            found="an empty last message",
            expected="text to be learned",
            fix="Give the assistant's answer, or remove the line.",
        )


def turns_of(
    content: dict[str, Any], where: str, key: str = "messages"
) -> tuple[dict[str, Any], ...]:
    """The turns of an object with ``messages``, or another key for them, whoever has the last one.

    Raises:
        DataError: it has none, or they are of other types.
    """
    messages = content.get(key)
    if not isinstance(messages, list) or not messages:
        more = ", as the answers are lists" if key == "prompt" else " that ends with the assistant"
        raise DataError(
            where,
            found=f"{key!r} that is {'empty' if messages == [] else _kind(messages)}",
            expected='a list of {"role", "content"}' + more,
            fix="Write the conversation's turns in order.",
        )
    for index, message in enumerate(messages):
        place = f"{where}{'' if key == 'messages' else f', {key}'}, message {index}"
        if not isinstance(message, dict):
            raise DataError(
                place,
                found=f"a JSON {_kind(message)}",
                expected='an object {"role", "content"}',
                fix="Write each turn as an object.",
            )
        text_of(message, "role", place)
        text_of(message, "content", place)
    return tuple(messages)


def text_of(content: dict[str, Any], key: str, where: str) -> str:
    """The text under a key of a line's object.

    Raises:
        DataError: there is none, or it cannot be encoded.
    """
    if key not in content:
        raise DataError(
            where,
            found=f"no {key!r}",
            expected=f"the keys {SHAPES}" if key in _KNOWN else 'both "role" and "content"',
            fix=f"Add {key!r}.",
        )
    value = content[key]
    if not isinstance(value, str):
        raise DataError(
            where,
            found=f"{key!r} that is {_kind(value)}",
            expected="text",
            fix=f"Write {key!r} as a JSON string.",
        )
    check_text(value, key, where)
    return value


def check_text(value: str, key: str, where: str) -> None:
    """Refuse half of a surrogate pair."""
    # JSON can spell half of a surrogate pair, which no tokenizer takes.
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            where,
            found=f"an unpaired surrogate in {key!r}",
            expected="text that can be encoded as UTF-8",
            fix="Correct the \\u escapes of the line.",
        ) from error


def _kind(value: object) -> str:
    names = {
        dict: "object",
        list: "list",
        str: "string",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "number")
