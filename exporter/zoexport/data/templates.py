"""YAML templates with Jinja: convert a row to a prompt, completion and choices (docs/formats.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoexport.core.errors import ConfigError, DataError, first_line, nearest
from zoexport.data.layouts import LAYOUTS
from zoexport.data.readers import Row

if TYPE_CHECKING:
    import jinja2

_FOLDER = Path(__file__).parent / "templates"
_TEXTS = ("text", "prompt", "completion", "label")
_KEYS = (*_TEXTS, "choices", "labels", "answers", "columns", "layout")


def names() -> list[str]:
    """Return the names of the built-in templates."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


@dataclasses.dataclass(frozen=True)
class _Each:
    """Choices from a list: a list expression, and the text template of each ``item``."""

    of: Any
    text: jinja2.Template


@dataclasses.dataclass(frozen=True)
class Template:
    """A compiled template.

    Attributes:
        name: name in messages.
        texts: those of ``text``, ``prompt``, ``completion`` and ``label`` that it defines.
        choices: None if the examples have no choices.
        labels: a label's name in lower case -> the index of its choice.
        answers: expression for the list of all reference answers, or None.
        columns: name -> its columns in different releases.
        layout: a key of :data:`LAYOUTS`, or None if each row is one example.
    """

    name: str
    texts: Mapping[str, jinja2.Template]
    choices: tuple[jinja2.Template, ...] | _Each | None
    labels: Mapping[str, int]
    answers: Any
    columns: Mapping[str, tuple[str, ...]]
    layout: str | None

    @property
    def nested(self) -> bool:
        """True if a release of this data is one document."""
        return self.layout is not None

    def expanded(self, where: str, row: dict[str, Any]) -> Iterator[Row]:
        """Yield the examples of a row, each as columns.

        Raises:
            DataError: the row has another layout.
        """
        if self.layout is None:
            yield where, row
            return
        try:
            yield from LAYOUTS[self.layout](where, row)
        except (LookupError, TypeError, AttributeError) as error:
            raise DataError(
                where,
                found=f"a row without {error}" if isinstance(error, KeyError) else str(error),
                expected=f"the published layout of {self.name}",
                fix="Check the file and --template.",
            ) from error

    def record(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Convert the columns of an example to a record of JSON Lines.

        Raises:
            DataError: a column is missing, or the template does not have the label.
        """
        import jinja2

        values = {**row}
        for name, columns in self.columns.items():
            for column in columns:
                if row.get(column) is not None:
                    values[name] = row[column]
                    break
        try:
            made: dict[str, Any] = {
                key: template.render(values)
                for key, template in self.texts.items()
                if key != "label"
            }
            if self.choices is not None:
                made["choices"] = self._choices(values)
            if "label" in self.texts:
                label = self.texts["label"].render(values)
                made["completion"] = made["choices"][self._index(label, made["choices"], where)]
            if self.answers is not None:
                made["answers"] = self.answers(**values)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            raise DataError(
                where,
                found=f"the columns {', '.join(map(str, row))} ({first_line(error)})",
                expected=f"the columns that the template {self.name} uses",
                fix="Name them with --columns, or use another template.",
            ) from error
        return made

    def _choices(self, values: Mapping[str, Any]) -> list[str]:
        if isinstance(self.choices, _Each):
            text = self.choices.text
            return [text.render({**values, "item": item}) for item in self.choices.of(**values)]
        return [choice.render(values) for choice in self.choices or ()]

    def _index(self, label: str, choices: list[str], where: str) -> int:
        index = self.labels.get(label.lower())
        if index is None and label.isdecimal():
            index = int(label)
        if index is None or index >= len(choices):
            known = ", ".join(map(repr, self.labels)) + (" or " if self.labels else "")
            raise DataError(
                where,
                found=f"the label {label!r}",
                expected=f"{known}a number from 0 to {len(choices) - 1}",
                fix="Use rows with labels; test sets often have -1 in place of theirs.",
            )
        return index


def load(name: str) -> Template:
    """Load a built-in template by name, or a template from a YAML file.

    Raises:
        ConfigError: no such template or file, or the file is not a template.
    """
    path = _FOLDER / f"{name}.yaml" if name in names() else Path(name)
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--template {name}",
            found="neither a template nor a readable file",
            expected=f"one of {', '.join(names())}, or a YAML file",
            fix=f"Check the name.{nearest(name, names())}",
        ) from error
    except yaml.YAMLError as error:
        raise _wrong(name, first_line(error)) from error
    return _compiled(name, content)


def _wrong(name: str, found: str) -> ConfigError:
    return ConfigError(
        f"--template {name}",
        found=found,
        expected=f"a mapping with text, or prompt and completion or choices and label (keys: {', '.join(_KEYS)})",
        fix="Correct the file; docs/formats.md has an example.",
    )


def _compiled(name: str, content: Any) -> Template:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if not isinstance(content, dict):
        raise _wrong(name, "no mapping")
    if unknown := [key for key in content if key not in _KEYS]:
        raise _wrong(name, f"the key {unknown[0]!r}")
    known = {"text"}, {"prompt", "completion"}, {"prompt", "completion", "choices"}
    if {*content} & {*_TEXTS, "choices"} not in (*known, {"prompt", "choices", "label"}):
        raise _wrong(name, f"the keys {', '.join(content)}")
    layout = content.get("layout")
    if layout is not None and layout not in LAYOUTS:
        raise _wrong(name, f"the layout {layout!r}")
    environment = ImmutableSandboxedEnvironment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )

    def text(value: Any) -> jinja2.Template:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} where a text belongs")
        return environment.from_string(value)

    def expression(value: Any) -> Any:
        if not isinstance(value, str):
            raise TypeError(f"{value!r} where an expression belongs")
        return environment.compile_expression(value, undefined_to_none=False)

    try:
        choices: tuple[jinja2.Template, ...] | _Each | None = None
        match content.get("choices"):
            case None:
                pass
            case list(given):
                choices = tuple(map(text, given))
            case {"of": of, "text": each, **rest} if not rest:
                choices = _Each(expression(of), text(each))
            case other:
                raise TypeError(f"the choices {other!r}")
        answers = content.get("answers")
        return Template(
            name=name,
            texts={key: text(content[key]) for key in _TEXTS if key in content},
            choices=choices,
            labels={str(key).lower(): int(at) for key, at in content.get("labels", {}).items()},
            answers=None if answers is None else expression(answers),
            columns={key: tuple(of) for key, of in content.get("columns", {}).items()},
            layout=layout,
        )
    except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(name, first_line(error)) from error
