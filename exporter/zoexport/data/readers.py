"""Read files, folders and Hub data sets row by row: location and values by column."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from zoexport.core import outside
from zoexport.core.errors import ConfigError, DataError, first_line

HUB = "hf:"
_UTF8 = "utf-8-sig"
_GZIP = b"\x1f\x8b"
_HEAD = 64
"""Bytes in which a list must begin."""
CONVERT = "Convert the file, such as: iconv -f LATIN1 -t UTF-8 FILE > NEW."
_BATCH = 256
"""Rows of Parquet that are in memory as Python's values at a time."""

Row: TypeAlias = "tuple[str, dict[str, Any]]"


class Table(Protocol):
    """A DataFrame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """Names of the columns."""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""


Rows: TypeAlias = "Iterable[Mapping[str, Any]] | Table"
"""Dicts, a DataFrame, or a ``datasets.Dataset``."""
Place: TypeAlias = "str | os.PathLike[str] | Rows | Mapping[str, Rows]"
"""Path of rows, the rows, or splits by name, such as a ``datasets.DatasetDict``."""


def is_json_lines(place: Place) -> bool:
    """Return whether the session can read the source itself: a file of JSON Lines in UTF-8."""
    if not isinstance(place, (str, os.PathLike)) or _reader(os.fspath(place)) is not None:
        return False
    try:
        with _content(os.fspath(place)) as (file, encoding):
            packed = isinstance(file, gzip.GzipFile)
            return encoding == _UTF8 and not packed and not _is_list(file.peek(_HEAD))
    except OSError:
        return True  # the session reports what is wrong


def rows(place: Place, *, nested: bool = False) -> Iterator[Row]:
    """Yield the rows of a source with their locations.

    Args:
        place: a path, ``hf:[owner/]name[:config][:split]``, or the rows.
        nested: whether a ``.json`` file may be one document, read as one row.

    Raises:
        DataError: the source cannot be read. ConfigError: a required library is missing.
    """
    if not isinstance(place, (str, os.PathLike)):
        yield from _given(place)
        return
    name = os.fspath(place)
    reader = _reader(name)
    if reader is not None:
        yield from reader(name)
    elif nested and name.endswith(".json") and (document := _document(Path(name))) is not None:
        yield name, document
    else:
        yield from _json_lines(name)


def class_names(place: Place, column: str) -> list[str] | None:
    """Return the class names of a column, if a data set of ``datasets`` has them."""
    features = getattr(place, "features", None)
    names = getattr(features.get(column), "names", None) if isinstance(features, Mapping) else None
    return None if names is None else list(names)


def _given(found: Any) -> Iterator[Row]:
    if isinstance(found, Mapping):
        raise DataError(
            "data",
            found=f"a mapping with the keys {', '.join(map(str, found))}",
            expected="the rows of one split",
            fix="Pass one of them, such as data['test'].",
        )
    if hasattr(found, "iter_rows"):  # polars
        found = found.iter_rows(named=True)
    elif hasattr(found, "to_dict") and hasattr(found, "columns"):  # pandas
        found = _table(found)
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise DataError(
                f"example {number}",
                found=f"a {type(row).__name__}",
                expected="a mapping of names to text, as a line of JSON Lines has",
                fix="Give dicts such as {'prompt': '...', 'completion': '...'}.",
            )
        yield f"example {number}", dict(row)


def _table(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table without its missing values; arrays, as Parquet's lists are read, become lists."""
    records, missing = (one.to_dict("records") for one in (frame, frame.isna()))
    for row, gone in zip(records, missing, strict=True):
        yield {
            str(key): value.tolist() if hasattr(value, "tolist") else value
            for key, value in row.items()
            if not gone[key]
        }


def _reader(name: str) -> Callable[[str], Iterator[Row]] | None:
    if name.startswith(HUB):
        return _hub
    if os.path.isdir(name):
        return _texts
    endings = {".csv": _csv, ".tsv": _tsv, ".parquet": _parquet}
    return endings.get(Path(name.lower().removesuffix(".gz")).suffix)


@contextlib.contextmanager
def _content(name: str) -> Iterator[tuple[io.BufferedReader | gzip.GzipFile, str]]:
    """Open a text file as bytes, decompressing gzip; also yield the encoding from its BOM."""
    with open(name, "rb") as raw, contextlib.ExitStack() as stack:
        file: io.BufferedReader | gzip.GzipFile = raw
        if raw.peek(2)[:2] == _GZIP:
            file = stack.enter_context(gzip.GzipFile(fileobj=raw))
        marked = file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        yield file, "utf-16" if marked else _UTF8


def _is_list(head: bytes) -> bool:
    return head.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"[")


def _document(path: Path) -> dict[str, Any] | None:
    """Read a file that is one JSON object; None if it is something else, such as JSON Lines."""
    try:
        content = outside.parse(path.read_bytes())
    except (OSError, outside.BadJsonError):
        return None
    return content if isinstance(content, dict) else None


def _unreadable(name: str, error: BaseException, expected: str) -> DataError:
    text = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
    return DataError(
        f"data {name}",
        found=text[:1].lower() + text[1:],
        expected=expected,
        fix=CONVERT if isinstance(error, UnicodeDecodeError) else "Check the path and the file.",
    )


def _json_lines(name: str) -> Iterator[Row]:
    found = False
    try:
        with _content(name) as (file, encoding):
            # UTF-8 stays bytes, so that an error can name the line with the wrong encoding.
            lines: Iterable[bytes] = file
            if encoding != _UTF8:
                text = io.TextIOWrapper(file, encoding, newline="\n")
                lines = (line.encode() for line in text)
            for number, raw in enumerate(lines, start=1):
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                    if _is_list(raw):
                        yield from _list(name, raw + b"".join(lines))
                        return
                if raw.strip():
                    found = True
                    yield f"{name}:{number}", _object(raw, f"{name}:{number}")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(name, error, "a readable JSON Lines file") from error
    if not found:
        raise DataError(
            f"data {name}",
            found="no examples",
            expected="one JSON object a line",
            fix="Write at least one example.",
        )


def _list(name: str, content: bytes) -> Iterator[Row]:
    """Yield the objects of a file that is one JSON list."""
    for number, entry in enumerate(_parsed(content, f"data {name}", "a JSON list of objects")):
        where = f"{name}, entry {number}"
        yield where, _example(entry, where, "a list of objects, each of them an example")


def _object(raw: bytes, where: str) -> dict[str, Any]:
    expected = "one JSON object a line"
    return _example(_parsed(raw, where, expected), where, expected)


def _example(content: Any, where: str, expected: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise DataError(
            where,
            found=f"JSON that is no object: {str(content)[:80]}",
            expected=expected,
            fix="Write each example as an object.",
        )
    return content


def _parsed(raw: bytes, where: str, expected: str) -> Any:
    try:
        return outside.parse(raw)
    except outside.BadJsonError as error:
        encoding = "not UTF-8" in str(error)
        raise DataError(
            where,
            found=str(error),
            expected="UTF-8 text" if encoding else expected,
            fix=CONVERT if encoding else "Correct the line.",
        ) from error


def _csv(name: str) -> Iterator[Row]:
    return _separated(name, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def _tsv(name: str) -> Iterator[Row]:
    # GLUE's files have quotation marks that belong to the text, many of them unbalanced.
    return _separated(name, delimiter="\t", quoting=csv.QUOTE_NONE)


def _separated(name: str, *, delimiter: str, quoting: Any) -> Iterator[Row]:
    csv.field_size_limit(1 << 28)  # the library's default is less than a long text
    line = 1
    try:
        with _content(name) as (file, encoding):
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
            reader = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
            header: list[str] | None = None
            for cells in reader:
                where, line = f"{name}:{line}", reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = _header(cells, where)
                elif len(cells) != len(header):
                    raise DataError(
                        where,
                        found=f"{len(cells)} cells",
                        expected=f"{len(header)}, one for each column of the first line",
                        fix="Quote cells that hold the separator, or correct the line.",
                    )
                else:
                    yield where, dict(zip(header, cells, strict=True))
    except (OSError, EOFError) as error:
        raise _unreadable(name, error, "a readable file of separated values") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, at or after line {line}",
            found="bytes that are not UTF-8",
            expected="UTF-8 text",
            fix=CONVERT,
        ) from error
    except csv.Error as error:
        raise DataError(
            f"{name}:{line}",
            found=str(error),
            expected="separated values as RFC 4180 has them",
            fix="Correct the quotation marks of this record.",
        ) from error


def _header(cells: list[str], where: str) -> list[str]:
    if len(set(cells)) < len(cells) or "" in cells:
        raise DataError(
            where,
            found=f"the column names {cells!r}",
            expected="different names, none of them empty",
            fix="Give each column a name of its own in the first line.",
        )
    return cells


def _parquet(name: str) -> Iterator[Row]:
    arrow, parquet = _library("pyarrow", name), _library("pyarrow.parquet", name)
    number = 0
    try:
        with open(name, "rb") as content, parquet.ParquetFile(content) as file:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{name}, row {number}", row
    except (OSError, arrow.ArrowException) as error:
        raise _unreadable(name, error, "a readable Parquet file") from error


def _texts(name: str) -> Iterator[Row]:
    found = sorted(path for path in Path(name).rglob("*.txt") if path.is_file())
    if not found:
        raise DataError(
            f"data {name}",
            found="a folder without .txt files",
            expected="text files with one example each",
            fix="Name the file of examples, or the folder of texts.",
        )
    for path in found:
        try:
            with _content(str(path)) as (file, encoding):
                text = file.read().decode(encoding)
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise _unreadable(str(path), error, "a readable text file in UTF-8") from error
        yield str(path), {"text": text}


def _hub(name: str) -> Iterator[Row]:
    repository, *parts = name.removeprefix(HUB).split(":")
    if not repository or len(parts) > 2 or "" in parts:
        raise ConfigError(
            f"data {name}",
            found="no name of a data set",
            expected="hf:owner/name, hf:owner/name:split or hf:owner/name:config:split",
            fix="Correct the name.",
        )
    os.environ.setdefault("USE_TORCH", "0")  # the process that trains has no use for it
    library = _library("datasets", name)
    number = 0
    try:
        if len(parts) == 1 and parts[0] in library.get_dataset_config_names(repository):
            parts.append("")
        config, split = (None, None, *parts)[-2:]
        found = library.load_dataset(repository, config, split=split or None, streaming=True)
        if isinstance(found, dict):
            found = _only_split(name, found)
        for row in found:
            number += 1
            yield f"{name}, row {number}", row
    except (ConfigError, DataError):
        raise
    except Exception as error:  # whatever the library, the network and the data set's files raise
        raise DataError(
            f"data {name}" + (f", after row {number}" if number else ""),
            found=f"{type(error).__name__}: {first_line(error)}",
            expected="a data set that the library datasets reads",
            fix="Check its name and the network, or download it as Parquet and name that file.",
        ) from error


def _only_split(name: str, splits: dict[str, Any]) -> Any:
    if len(splits) != 1:
        raise ConfigError(
            f"data {name}",
            found=f"the splits {', '.join(splits)}",
            expected="the one that is meant",
            fix=f"Name it, such as {name}:{next(iter(splits))}.",
        )
    return next(iter(splits.values()))


def _library(name: str, source: str) -> ModuleType:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"data {source}",
            found=f"no library {name.partition('.')[0]}",
            expected="what reads such data",
            fix="Install it: pip install 'zoexport[data]'.",
        ) from error


def parsed_cell(value: Any) -> Any:
    """Parse a cell that contains a JSON list; return anything else unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
