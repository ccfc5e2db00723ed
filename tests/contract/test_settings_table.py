"""The table of settings and options that the C++ library is built with is that of the Python declarations."""

from __future__ import annotations

import json
from pathlib import Path

from zoexport.core.config import fields
from zoexport.methods import methods
from zoexport.tools import settings_schema

TABLE = Path(__file__).parents[2] / "graphs" / "schema" / "settings.schema.json"


def test_the_table_is_written_from_the_declarations() -> None:
    message = f"Renew it: python -m zoexport.tools.settings_schema {TABLE}"
    assert TABLE.read_text("utf-8") == settings_schema.text(), message


def test_every_setting_of_a_run_is_in_the_table() -> None:
    known = json.loads(TABLE.read_text("utf-8"))["$defs"]["settings"]["properties"]
    for name in methods.names():
        for key, (_, info) in fields(methods.get(name).config).items():
            # A method may compile in what others take when they train.
            assert known[key].get("phase") == info.phase if info.runtime else key in known
