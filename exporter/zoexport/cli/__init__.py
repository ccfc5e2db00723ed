"""Command line: parses arguments, calls one function per command and prints its result."""
