"""Map the columns of a source to the keys of an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoexport.core.errors import ConfigError, DataError, nearest
from zoexport.data.readers import parsed_cell

_LISTS = ("choices", "messages", "answers")
_TEXTS = ("text", "prompt", "completion", "chosen", "rejected")


def parse_columns(text: str) -> dict[str, str]:
    """Parse ``--columns prompt=question,completion=answer`` into a mapping from keys to columns.

    Raises:
        ConfigError: a part is not an assignment, or a key occurs twice.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, column = (piece.strip() for piece in part.partition("="))
        if not (key and equals and column) or key in found:
            raise ConfigError(
                f"--columns {text}",
                found=f"{part!r}" + (", a second time" if key in found else ""),
                expected="KEY=COLUMN once for each key, separated by commas",
                fix="Write it as --columns prompt=question,completion=answer.",
            )
        found[key] = column
    return found


def renamed(row: Mapping[str, Any], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    """Return the mapped values by key. ``a|b`` for a column is the list of both columns' values.

    Raises:
        DataError: the column is missing.
    """
    return {
        key: [_value(row, one, where) for one in column.split("|")]
        if "|" in column
        else _value(row, column, where)
        for key, column in columns.items()
    }


def label(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the class of a row as text.

    Raises:
        DataError: the column is missing or empty.
    """
    value = _value(row, column, where, "--label-column")
    text = str(value).strip() if value is not None else ""
    if not text:
        raise DataError(
            where,
            found=f"nothing in the column {column!r}",
            expected="the class of the row",
            fix="Give it, or remove the row.",
        )
    return text


def classified(
    row: Mapping[str, Any],
    chosen: Mapping[str, Any],
    column: str,
    choices: Sequence[str],
    where: str,
) -> dict[str, Any]:
    """Convert a row with a class to a multiple-choice example: a prompt, and classes after a space.

    Args:
        row: has its class in ``column``: one of ``choices``, or its index.
        chosen: values that ``--columns`` mapped. The prompt is its ``prompt``, else the row's
            column prompt or text, or its only other column.

    Raises:
        DataError: no prompt, no class, or a class that is not among the choices.
    """
    found = _chosen(label(row, column, where), list(choices), where)
    if found not in choices:
        raise DataError(
            where,
            found=f"the class {found!r}",
            expected="one of " + ", ".join(choices),
            fix="Correct the row, or name all classes with --choices.",
        )
    others = [key for key in row if key != column]
    key = next(
        (key for key in ("prompt", "text") if key in row), others[0] if len(others) == 1 else None
    )
    if "prompt" not in chosen and key is None:
        raise DataError(
            where,
            found=f"the columns {', '.join(others) or 'none'} beside {column!r}",
            expected="one that is the prompt",
            fix="Name it, such as --columns prompt=COLUMN.",
        )
    prompt = chosen["prompt"] if "prompt" in chosen else row[str(key)]
    return {
        "prompt": str(prompt),
        "completion": f" {found}",
        "choices": [f" {choice}" for choice in choices],
    }


def _value(row: Mapping[str, Any], column: str, where: str, option: str = "--columns") -> Any:
    if column not in row:
        raise DataError(
            where,
            found=f"the columns {', '.join(row) or 'none'}",
            expected=f"a column {column!r}",
            fix=f"Correct {option}.{nearest(column, row)}",
        )
    return row[column]


def record(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Convert a row whose columns are an example's keys to that example.

    Empty values are omitted. Lists may be JSON texts, integers become texts, and a completion that
    is an integer and not among the choices is the index of a choice.

    Raises:
        DataError: the index is out of range.
    """
    made = {key: value for key, value in row.items() if value is not None}
    for key in _LISTS:
        if key in made:
            made[key] = parsed_cell(made[key])
    choices = made.get("choices")
    if isinstance(choices, list) and "completion" in made:
        made["completion"] = _chosen(made["completion"], choices, where)
    for key in _TEXTS:
        if isinstance(made.get(key), int) and not isinstance(made[key], bool):
            made[key] = str(made[key])
    return made


def _chosen(completion: Any, choices: list[Any], where: str) -> Any:
    if completion in choices or isinstance(completion, bool):
        return completion
    try:
        index = int(completion) if isinstance(completion, (int, str)) else None
    except ValueError:
        return completion
    if index is None:
        return completion
    if not 0 <= index < len(choices):
        raise DataError(
            where,
            found=f"the label {index}",
            expected=f"the index of one of {len(choices)} choices, from 0",
            fix="Use rows with labels; test sets often have -1 in place of theirs.",
        )
    return choices[index]
