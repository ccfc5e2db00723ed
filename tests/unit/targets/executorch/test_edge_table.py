"""ExecuTorch's table of types, read by another parser than its own."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from ruamel.yaml import YAML

from zoexport.targets.executorch import edge_table


def test_both_parsers_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import executorch.exir.dialects.edge as package

    text = resources.read_text(package, "edge.yaml", encoding="utf-8")
    whole: Any = YAML(typ="safe").load(text)
    monkeypatch.setattr(edge_table, "_READER", "of nothing")
    own = YAML.load
    with edge_table.read_by_libyaml():
        assert YAML.load is not own
        assert YAML(typ="safe").load(text) == whole
    assert YAML.load is own


def test_nothing_changes_where_executorch_is_imported() -> None:
    import executorch.exir  # noqa: F401

    own = YAML.load
    with edge_table.read_by_libyaml():
        assert YAML.load is own
