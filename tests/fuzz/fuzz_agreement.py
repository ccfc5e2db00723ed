"""Both readers of a file, the session and Python: both take it, or both refuse it."""

from __future__ import annotations

if __name__ == "__main__":
    import atheris  # noqa: F401

from tests.fuzz.python_target import folder, instrumented, main

with instrumented():
    from tests.fuzz import readers

FOLDER = folder()


def run(data: bytes) -> None:
    """One input: its first byte says which file it is."""
    kind = readers.KINDS[data[0] % len(readers.KINDS)] if data else "json"
    of_session, of_python = readers.both(kind, data[1:], FOLDER)
    assert (of_session == "") == (of_python == ""), (kind, of_session, of_python)


if __name__ == "__main__":
    main(run)
