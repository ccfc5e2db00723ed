"""Data as it comes: CSV, Parquet, text files and Hub data sets as the JSON Lines that a session reads (docs/cli.md)."""

from __future__ import annotations

from zoexport.data.sources.convert import DataSource, opened, records

__all__ = ["DataSource", "opened", "records"]
