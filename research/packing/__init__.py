"""Rows, and time a token, with and without packing."""
