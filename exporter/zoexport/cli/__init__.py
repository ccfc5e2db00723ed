"""The command line: it parses arguments, calls one function a verb, and prints what that returns."""
