"""Convert CSV, Parquet, text files and Hub data sets to JSON Lines for a session (docs/formats.md).

Errors that refer to lines of the converted file are changed to refer to rows of the source.
"""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from zoexport.core.errors import ConfigError, DataError, ZoExportError
from zoexport.data import columns as named
from zoexport.data import readers
from zoexport.data.readers import Place, Row
from zoexport.data.templates import Template, load

_MOST_CLASSES = 100


@dataclasses.dataclass(frozen=True)
class DataSource:
    """A source of examples and how to convert it.

    Attributes:
        place: a file of JSON Lines (``.jsonl`` or any other ending) or one JSON list, ``.csv``, ``.tsv`` or
            ``.parquet``, a folder of ``.txt`` files, ``hf:[owner/]name[:config][:split]``, or rows: dicts, a DataFrame
            of pandas or polars, a ``datasets.Dataset``. To train also splits: a ``datasets.DatasetDict``.
        columns: key of an example or name in a template -> column; ``a|b`` lists two columns.
        template: name or file of a template; None if columns are keys of an example.
        label_column: column with the class of each row, for classification; or None.
        choices: classes in the order of their indices; None: those of ``label_column``.
    """

    place: Place
    columns: Mapping[str, str] | None = None
    template: str | os.PathLike[str] | None = None
    label_column: str | None = None
    choices: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """Location of the source as text."""
        place = self.place
        return os.fspath(place) if isinstance(place, (str, os.PathLike)) else "of examples"

    @property
    def as_it_is(self) -> bool:
        """True if the session reads the file itself."""
        changed = self.columns or self.template is not None or self.label_column is not None
        return not changed and readers.is_json_lines(self.place)


Data: TypeAlias = "Place | DataSource"
"""Where examples are (a path, ``hf:NAME``, or a :class:`DataSource`), or they themselves."""


def splits(data: Data, eval_data: Data | None) -> tuple[Data, Data | None]:
    """Return the examples to train on and to evaluate on, if ``data`` has splits.

    The splits are ``train`` and, if ``eval_data`` is None, ``validation`` or ``test``.

    Raises:
        DataError: there is no split ``train``.
    """
    source = data if isinstance(data, DataSource) else DataSource(data)
    if not isinstance(source.place, Mapping):
        return data, eval_data
    parts = {name: dataclasses.replace(source, place=rows) for name, rows in source.place.items()}
    if "train" not in parts:
        raise DataError(
            "data",
            found=f"a mapping with the keys {', '.join(map(str, parts)) or 'none'}",
            expected="a split 'train'",
            fix="Pass the split to train on, such as data['train'].",
        )
    if eval_data is None:
        eval_data = parts.get("validation", parts.get("test"))
    return parts["train"], eval_data


def records(
    source: DataSource, on_problem: Callable[[DataError], None] | None = None
) -> Iterator[Row]:
    """Yield the examples of a source as JSON objects with their locations.

    Args:
        source: the source to read.
        on_problem: called for each unusable row, which is skipped; without it, the error is raised.

    Raises:
        DataError: the source is unreadable. ConfigError: unknown template, or missing library.
    """
    template = None if source.template is None else load(os.fspath(source.template))
    nested = template is not None and template.nested
    if isinstance(source.place, Iterator) and source.label_column is not None:
        # Classes are collected before the rows are read.
        source = dataclasses.replace(source, place=list(source.place))
    choices = _choices(source)
    for where, row in readers.rows(source.place, nested=nested):
        try:
            for place, columns in (
                [(where, row)] if template is None else template.expanded(where, row)
            ):
                try:
                    yield place, _record(columns, source, template, choices, place)
                except DataError as error:
                    if on_problem is None:
                        raise
                    on_problem(error)
        except DataError as error:
            if on_problem is None:
                raise
            on_problem(error)


def _choices(source: DataSource) -> list[str]:
    """Return the classes of a source with a label column."""
    column = source.label_column
    if column is None:
        if source.choices is not None:
            raise ConfigError(
                "choices",
                found="no label column",
                expected="the column whose classes they are",
                fix="Name it with --label-column.",
            )
        return []
    known = source.choices or readers.class_names(source.place, column)
    if known is not None:
        return list(known)
    found: set[str] = set()
    for where, row in readers.rows(source.place):
        found.add(named.label(row, column, where))
        if len(found) > _MOST_CLASSES:
            raise DataError(
                f"data {source.name}",
                found=f"more than {_MOST_CLASSES} different values in the column {column!r}",
                expected="a column of classes",
                fix="Name another one with --label-column, or the classes with --choices.",
            )
    return sorted(found)


def _record(
    row: dict[str, Any],
    source: DataSource,
    template: Template | None,
    choices: Sequence[str],
    where: str,
) -> dict[str, Any]:
    chosen = named.renamed(row, source.columns, where) if source.columns else {}
    if template is not None:
        return template.record({**row, **chosen}, where)
    if source.label_column is not None:
        return named.classified(row, chosen, source.label_column, choices, where)
    return named.record(chosen or row, where)


@dataclasses.dataclass(frozen=True)
class Converted:
    """A source converted to a JSON Lines file.

    Attributes:
        source: the original source.
        path: the converted file, or the source itself if no conversion is needed.
        places: file with the source location of each line; None if ``path`` is the source.
    """

    source: DataSource
    path: Path
    places: Path | None

    def original(self, where: str) -> str:
        """Return ``where`` with lines of the file replaced by rows of the source."""
        if self.places is None:
            return where
        places, name = self.places, self.source.name

        def row(match: re.Match[str]) -> str:
            number = match[1] or match[2]
            if number is None:
                return name
            with places.open(encoding="utf-8", errors="surrogateescape") as file:
                line = next(itertools.islice(file, int(number) - 1, None), None)
            return name if line is None else str(json.loads(line))

        return re.sub(re.escape(str(self.path)) + r"(?::(\d+)|, example (\d+))?", row, where)


@contextlib.contextmanager
def converted(
    source: DataSource, on_problem: Callable[[DataError], None] | None = None
) -> Iterator[Converted]:
    """Yield a source as a temporary JSON Lines file.

    Args:
        source: the source to read.
        on_problem: see :func:`records`; the file may then be empty.

    Raises:
        DataError: unusable source or row. ConfigError: unknown template, no library, disk full.
    """
    if source.as_it_is:
        yield Converted(source, Path(source.name), None)
        return
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        found = Converted(source, Path(folder) / "data.jsonl", Path(folder) / "places")
        _write(found, on_problem)
        yield found


@contextlib.contextmanager
def opened(source: DataSource) -> Iterator[Path]:
    """Yield the file of :func:`converted`; errors about its lines refer to rows of the source.

    Raises:
        DataError, ConfigError: see there.
    """
    with converted(source) as data:
        try:
            yield data.path
        except ZoExportError as error:
            where = data.original(error.where)
            if where == error.where:
                raise
            raise type(error)(
                where, found=error.found, expected=error.expected, fix=error.fix
            ) from error


def line_of(record: Mapping[str, Any], where: str) -> str:
    """Serialize an example as a line of JSON Lines.

    Raises:
        DataError: a value has no JSON representation.
    """
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(
            where,
            found=str(error),
            expected="texts, numbers and lists of them",
            fix="Name the columns that are needed with --columns.",
        ) from error


def _plain(value: Any) -> str:
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "isoformat"):  # dates and times
        return str(value.isoformat())
    raise TypeError(f"a value of type {type(value).__name__}")


def _write(data: Converted, on_problem: Callable[[DataError], None] | None) -> None:
    written = 0
    assert data.places is not None
    # Closing writes again, so a full disk may be noticed there too. Half of a surrogate pair stays what it is, for the
    # session to refuse.
    try:
        with (
            data.path.open("w", encoding="utf-8", errors="surrogatepass") as lines,
            data.places.open("w", encoding="utf-8", errors="surrogateescape") as beside,
        ):
            for where, record in records(data.source, on_problem):
                try:
                    line = line_of(record, where)
                except DataError as error:
                    if on_problem is None:
                        raise
                    on_problem(error)
                    continue
                lines.write(line)
                beside.write(json.dumps(where) + "\n")
                written += 1
    except OSError as error:
        raise _full(data.path, error) from error
    if not written and on_problem is None:
        raise DataError(
            f"data {data.source.name}",
            found="no examples",
            expected="at least one row",
            fix="Check the file.",
        )


def _full(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"temporary file {path}",
        found=error.strerror or str(error),
        expected="room for the examples as JSON Lines",
        fix="Free space there, or name another folder in TMPDIR.",
    )


@contextlib.contextmanager
def as_file(data: Data) -> Iterator[Path]:
    """Yield the examples as a JSON Lines file."""
    with opened(data if isinstance(data, DataSource) else DataSource(data)) as file:
        yield file
