"""Recipes: files and names, the method in them, and that those of graphs/recipes are what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from zoexport.cli.main import run
from zoexport.compiler.plan import with_recipe
from zoexport.core.config import as_dict, fields, parse
from zoexport.core.errors import ConfigError
from zoexport.core.recipes import comment, known, read_recipe
from zoexport.methods import methods

NAMES = list(known())


def test_a_file(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("lora.r: 8\nweights: fp32\n")
    assert read_recipe(recipe).settings == {"lora.r": 8, "weights": "fp32"}
    assert read_recipe(recipe).method is None
    for content in ("- a\n- b\n", "a: [1\n", "1: 2\n", "method: 3\n"):
        recipe.write_text(content)
        with pytest.raises(ConfigError, match=r"recipe\.yaml"):
            read_recipe(recipe)
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        read_recipe(tmp_path / "missing.yaml")


def test_a_name_and_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_recipe("any-prge").method == "prge"
    with pytest.raises(ConfigError, match=r"found no such file or name.*Did you mean 'any-prge'"):
        read_recipe("any-prgee")
    (tmp_path / "any-prge").write_text("max_length: 3\n")
    assert read_recipe("any-prge").settings == {"max_length": 3}


def test_the_method_of_a_recipe_is_the_default_and_another_is_refused() -> None:
    planned = with_recipe(None, "host", {"num_queries": 2}, "any-prge")
    assert (planned.method.name, planned.config.num_queries) == ("prge", 2)
    assert with_recipe("prge", "host", {}, "any-prge").method.name == "prge"
    with pytest.raises(ConfigError, match="method 'mebp': found a recipe for prge"):
        with_recipe("mebp", "host", {}, "any-prge")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_what_its_comment_says(name: str) -> None:
    path = known()[name]
    what, command = comment(path)
    assert what.endswith(".")
    words = shlex.split(command)
    assert words[:2] == ["zoexport", "compile"]
    assert words[words.index("--recipe") + 1] == name
    given = dict(word.split("=") for word in words if "=" in word)
    planned = with_recipe(None, words[words.index("--target") + 1], given, name)
    assert name.endswith(f"-{planned.method.name}")
    assert planned.config.problems() == []


def test_every_method_has_one() -> None:
    assert {f"any-{name}" for name in methods.names()} <= set(NAMES)


@pytest.mark.parametrize("name", methods.names())
def test_where_to_begin_is_the_default(name: str) -> None:
    """A recipe for any model has no rates of its own; it may choose the kind of programs."""
    recipe = read_recipe(f"any-{name}")
    assert recipe.settings.keys() <= {"granularity"}
    kind = methods.get(name).config
    planned = with_recipe(None, "host", {"mask": "m"} if name == "senszoq" else {}, f"any-{name}")
    default: Any = parse(kind, {**recipe.settings, **({"mask": "m"} if name == "senszoq" else {})})
    found, expected = as_dict(planned.config), as_dict(default)
    # The target fills in what methods leave to it.
    assert {key: found[key] for key, value in expected.items() if value is not None} == {
        key: value for key, value in expected.items() if value is not None
    }


def test_the_verb_lists_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capfd.readouterr().out)["recipes"]
    assert [one["name"] for one in found] == NAMES
    for one in found:
        assert one.keys() == {"name", "method", "summary", "command", "settings", "file"}
        assert one["settings"].keys() <= fields(methods.get(one["method"]).config).keys()
    assert run(["recipes"]) == 0
    assert "qwen2.5-0.5b-mebp" in capfd.readouterr().out
