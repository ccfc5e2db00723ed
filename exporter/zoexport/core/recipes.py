"""Recipes: YAML files of settings, and the method that they are for. Those of graphs/recipes have names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from zoexport.core.errors import ConfigError, nearest
from zoexport.core.resources import shared

StrPath: TypeAlias = "str | os.PathLike[str]"
METHOD = "method"
"""The one key of a recipe that is no setting."""
_ENDINGS = (".yaml", ".yml")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Content of a recipe.

    Attributes:
        method: method of the recipe; None if the recipe sets none.
        settings: values by the keys of ``--set``.
    """

    method: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def chosen(self, method: str | None) -> str | None:
        """Return the method to use, given the requested ``method`` or None.

        Raises:
            ConfigError: the recipe is for another one.
        """
        if None not in (method, self.method) and method != self.method:
            raise ConfigError(
                f"method {method!r}",
                found=f"a recipe for {self.method}",
                expected="one method",
                fix="Leave --method out, or choose another recipe (zoexport recipes).",
            )
        return method or self.method


def known() -> dict[str, Path]:
    """Return the recipes that have names, by name."""
    return {path.stem: path for path in sorted(shared("recipes").glob("*.yaml"))}


def read_recipe(recipe: StrPath | None) -> Recipe:
    """Read a recipe.

    Args:
        recipe: a file, or a name of :func:`known`; a file of that name goes first. None: one that says nothing.

    Raises:
        ConfigError: there is none, or it is no mapping of settings.
    """
    import yaml

    if recipe is None:
        return Recipe()
    path = _file(Path(recipe))
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"recipe {path}",
            found=str(error).splitlines()[0],
            expected="a readable YAML file",
            fix="Check the path and the file.",
        ) from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"recipe {path}",
            found=f"a YAML {type(content).__name__}",
            expected="a mapping of settings, such as 'lora.r: 8'",
            fix="Write one 'key: value' a line.",
        )
    method = content.pop(METHOD, None)
    if not isinstance(method, str | None):
        raise ConfigError(
            f"recipe {path}",
            found=f"{METHOD}: {method!r}",
            expected="a method's name",
            fix="See 'zoexport methods'.",
        )
    return Recipe(method, content)


def comment(path: Path) -> list[str]:
    """The lines of comment that a recipe begins with, without their signs: what it is for, and a command."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        found.append(line[1:].strip())
    return found


def _file(path: Path) -> Path:
    """Return the file that a path or a name stands for.

    Raises:
        ConfigError: it is neither a path nor a known name.
    """
    if path.is_file() or path.name.endswith(_ENDINGS) or path.name != str(path):
        return path
    recipes = known()
    if path.name not in recipes:
        raise ConfigError(
            f"recipe {path.name!r}",
            found="no such file or name",
            expected="a YAML file, or one of " + ", ".join(recipes),
            fix=f"Run 'zoexport recipes'.{nearest(path.name, recipes)}",
        )
    return recipes[path.name]
