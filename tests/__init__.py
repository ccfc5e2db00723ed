"""The tests, importable so that they share `tests.support`."""
