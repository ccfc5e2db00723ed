"""The table of options that the C++ library is built with: ``graphs/schema/settings.schema.json``.

Settings come from the methods' dataclasses and options of calls from :mod:`zoexport.core.options`.
``python -m zoexport.tools.settings_schema FILE`` writes the table; a contract test compares it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoexport.core import options
from zoexport.core.config import SettingInfo, default_of, fields
from zoexport.core.files import atomic_file
from zoexport.core.settings import READING
from zoexport.methods import methods

_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def schema() -> dict[str, Any]:
    """Return the table as a JSON schema with a definition for each kind of options.

    ``phase`` is absent for what is compiled into a bundle, ``run`` for what a run keeps when it resumes, and
    ``process`` for what each process chooses. A setting whose default differs by method has none.
    """
    settings = _properties(
        [options.Schedule, *(methods.get(name).config for name in methods.names())]
    )
    kinds = {name: _properties([kind]) for name, kind in options.KINDS.items()}
    kinds["settings"] = settings
    kinds["read"] = {key: settings[key] for key in READING}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of a run and options of the session's calls (python -m zoexport.tools.settings_schema)",
        "$defs": {
            name: {
                "type": "object",
                "additionalProperties": False,
                "properties": dict(sorted(properties.items())),
            }
            for name, properties in sorted(kinds.items())
        },
    }


def _properties(configs: Iterable[type]) -> dict[str, dict[str, Any]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for config in configs:
        hints = typing.get_type_hints(config)
        for key, (field, info) in fields(config).items():
            found.setdefault(key, []).append(_property(field, info, hints[field.name]))
    return {key: _merged(entries) for key, entries in found.items()}


def _property(field: dataclasses.Field[Any], info: SettingInfo, hint: Any) -> dict[str, Any]:
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    origin = typing.get_origin(hint) or hint
    found: dict[str, Any] = {"type": _TYPES[origin]}
    if origin is list:
        (item,) = typing.get_args(hint)
        found["items"] = {"type": _TYPES[typing.get_origin(item) or item]}
    if (default := default_of(field)) is not None:
        found["default"] = default
    if info.choices:
        numbers = origin in (int, float)
        found["enum"] = [int(choice) for choice in info.choices] if numbers else list(info.choices)
    for name, value in (
        ("minimum", info.at_least),
        ("exclusiveMinimum", info.above),
        ("maximum", info.at_most),
        ("exclusiveMaximum", info.below),
    ):
        if value is not None:
            found[name] = value
    if info.phase != "compile":
        found["phase"] = info.phase
    return {**found, "description": info.help}


def _merged(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what all methods that have a setting agree on; choices are united."""
    merged = dict(entries[0])
    for key in ("default", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if any(entry.get(key) != merged.get(key) for entry in entries):
            merged.pop(key, None)
    if "enum" in merged:
        merged["enum"] = list(
            dict.fromkeys(one for entry in entries for one in entry.get("enum", ()))
        )
    return merged


def text() -> str:
    """Return the table as it is committed: JSON with a line for each property."""
    table = schema()
    definitions = table.pop("$defs")
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in table.items()]
    kinds = []
    for name, kind in definitions.items():
        properties = [
            f"   {json.dumps(key)}: {json.dumps(one)}" for key, one in kind["properties"].items()
        ]
        head = '"type": "object", "additionalProperties": false, "properties"'
        kinds.append(f"  {json.dumps(name)}: {{{head}: {{\n" + ",\n".join(properties) + "\n  }}")
    parts.append(' "$defs": {\n' + ",\n".join(kinds) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    with atomic_file(Path(sys.argv[1])) as file:
        file.write_text(text(), encoding="utf-8")
