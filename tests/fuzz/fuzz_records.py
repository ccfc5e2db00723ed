"""Lines of a data file: records, or a message with the line's number."""

from __future__ import annotations

if __name__ == "__main__":
    import atheris  # noqa: F401

from tests.fuzz.python_target import check, check_error, folder, instrumented, main

with instrumented():
    from zoexport.core.errors import DataError
    from zoexport.data import records

FILE = folder() / "lines.jsonl"


def run(data: bytes) -> None:
    """One file."""
    FILE.write_bytes(data)
    try:
        found = list(records.read_records(FILE))
    except DataError as error:
        check_error(error)
        check(str(FILE) in error.where)
        return
    assert found
    for record in found:
        if isinstance(record, records.CompletionRecord):
            assert 0 <= record.target < len(record.completions)
        elif isinstance(record, records.ChatRecord):
            assert record.messages[-1]["role"] == "assistant"


if __name__ == "__main__":
    main(run)
