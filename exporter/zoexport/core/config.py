"""Settings: one dataclass a method is the only source of names, defaults and legal values.

A field made with :func:`setting` knows its key (``lora.r``), its legal values, and whether it is compiled
into the bundle or may still be given when training starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from zoexport.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
Phase = Literal["compile", "run", "process"]
MOST_WHOLE = 2**64 - 1
"""Largest whole number of a setting; without ``at_most`` the C++ library takes 32 bits."""


@dataclasses.dataclass(frozen=True)
class SettingInfo:
    """Declaration of one setting, besides its type and default."""

    key: str
    help: str
    choices: tuple[str, ...] = ()
    above: float | None = None
    at_least: float | None = None
    phase: Phase = "compile"
    below: float | None = None
    at_most: float | None = None

    @property
    def runtime(self) -> bool:
        """True if ``train --set`` also accepts the setting."""
        return self.phase != "compile"


def setting(
    default: Any,
    *,
    help: str,
    key: str = "",
    choices: Sequence[str] = (),
    above: float | None = None,
    at_least: float | None = None,
    phase: Phase = "compile",
    below: float | None = None,
    at_most: float | None = None,
) -> Any:
    """Declare a dataclass field that is a setting.

    Args:
        default: the value if the user gives none; None: the method or the target decides. A dict for a setting of
            numbers by name.
        help: one line for ``zoexport methods``.
        key: the name in ``--set``; empty: the field's own name.
        choices: the only legal values, as text.
        above: a number must be greater than this.
        at_least: a number must be at least this.
        below: a number must be less than this.
        phase: ``compile`` for what is compiled into a bundle; ``run`` for what ``train --set`` takes too, and a run
            keeps when it resumes; ``process`` for what may differ each time.
        at_most: a number must be at most this.
    """
    info = SettingInfo(key, help, tuple(choices), above, at_least, phase, below, at_most)
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"setting": info})
    return dataclasses.field(default=default, metadata={"setting": info})


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a setting."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def fields(config: type) -> dict[str, tuple[dataclasses.Field[Any], SettingInfo]]:
    """Return the settings of a config dataclass by key."""
    found = {}
    for field in dataclasses.fields(config):
        info: SettingInfo = field.metadata["setting"]
        key = info.key or field.name
        found[key] = (field, dataclasses.replace(info, key=key))
    return found


def keys_of(config: type, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by key for values by key or keyword; unknown names stay, for the error that names them."""
    keys = {key.replace(".", "_"): key for key in fields(config)}
    return {keys.get(name, name): value for name, value in named.items()}


def as_dict(config: Any) -> dict[str, Any]:
    """Return every setting of a config by key."""
    return {key: getattr(config, field.name) for key, (field, _) in fields(type(config)).items()}


def parse_assignments(assignments: Sequence[str]) -> dict[str, str]:
    """``["lora.r=8", ...]`` as a dict.

    Raises:
        ConfigError: an assignment has no ``=``.
    """
    values: dict[str, str] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"--set {assignment}",
                found="no key=value",
                expected="a setting and its value, such as lora.r=8",
                fix="Write --set key=value.",
            )
        values[key.strip()] = value.strip()
    return values


def parse(config: type[C], values: Mapping[str, Any], *, runtime_only: bool = False) -> C:
    """A config from ``--set`` and recipe values; every problem is reported, not only the first.

    Args:
        config: the dataclass.
        values: values by key, as text or already typed.
        runtime_only: accept only what need not be compiled in (``train --set``).

    Raises:
        ConfigError: unknown keys (with the nearest name) and impossible values.
    """
    known = fields(config)
    problems: list[ConfigError] = []
    chosen: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            problems.append(
                ConfigError(
                    f"setting {key!r}",
                    found="no such setting",
                    expected="one of " + ", ".join(sorted(known)),
                    fix=f"Correct the name.{nearest(key, known)}",
                )
            )
            continue
        field, info = known[key]
        if runtime_only and not info.runtime:
            problems.append(
                ConfigError(
                    f"setting {key!r}",
                    found="a setting that is compiled into the bundle",
                    expected="one of "
                    + ", ".join(sorted(k for k, (_, i) in known.items() if i.runtime)),
                    fix=f"Compile again with --set {key}={value}.",
                )
            )
            continue
        try:
            hint = typing.get_type_hints(config)[field.name]
            chosen[field.name] = _parse_value(info, value, hint)
        except ConfigError as error:
            problems.append(error)
    _raise_all(problems)
    return config(**chosen)


def with_values(config: C, values: Mapping[str, Any]) -> C:
    """``config`` with some settings, given by key, replaced."""
    known = fields(type(config))
    changes = {known[key][0].name: value for key, value in values.items()}
    return dataclasses.replace(config, **changes)


def _raise_all(problems: Sequence[ConfigError]) -> None:
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise ConfigError(
            "settings",
            found=f"{len(problems)} problems: " + "; ".join(str(problem) for problem in problems),
            expected="known settings with possible values",
            fix="Correct each of them.",
        )


def _parse_value(info: SettingInfo, value: Any, hint: Any) -> Any:
    kind = _base_type(hint)
    if value is None and kind is not hint:
        return None
    if typing.get_origin(kind) is dict:
        return _parse_numbers(info, value, typing.get_args(kind)[1])
    if kind is bool:
        return _parse_flag(info, value)
    if kind is str and not info.choices and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    parsed = str(value) if kind is str else _parse_number(info, value, kind)
    if info.choices and str(parsed) not in info.choices:
        raise ConfigError(
            f"setting {info.key!r}",
            found=repr(parsed),
            expected="one of " + ", ".join(info.choices),
            fix=f"Choose one of them.{nearest(str(parsed), info.choices)}",
        )
    return parsed


def _from_text(value: Any) -> Any:
    """Parse a string as YAML; return other values and strings that are not YAML unchanged."""
    import yaml

    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            return yaml.safe_load(value)
    return value


def _parse_flag(info: SettingInfo, value: Any) -> bool:
    """Parse a boolean, or its text in YAML."""
    given = _from_text(value)
    if not isinstance(given, bool):
        raise ConfigError(
            f"setting {info.key!r}",
            found=repr(value),
            expected="true or false",
            fix=f"Write {info.key}=true or {info.key}=false.",
        )
    return given


def _parse_numbers(info: SettingInfo, value: Any, kind: type) -> dict[str, int | float]:
    """Numbers by name: a mapping, or the text of one in YAML's or JSON's words."""
    given = _from_text(value)
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"setting {info.key!r}",
            found=repr(value),
            expected="numbers by name, such as {q_proj: 8, down_proj: 4}",
            fix=f"Write --set '{info.key}={{NAME: NUMBER}}', with a blank behind each colon.",
        )
    return {
        name: _parse_number(dataclasses.replace(info, key=f"{info.key}: {name}"), number, kind)
        for name, number in given.items()
    }


def _parse_number(info: SettingInfo, value: Any, kind: type) -> int | float:
    word = "a whole number" if kind is int else "a number"
    if info.above is not None:
        word += f" above {info.above:g}"
    if info.at_least is not None:
        word += f" of at least {info.at_least:g}"
    if info.below is not None:
        word += f" and below {info.below:g}"
    if info.at_most is not None and info.at_most != MOST_WHOLE:
        word += f" and at most {info.at_most:g}"
    problem = ConfigError(
        f"setting {info.key!r}",
        found=repr(value),
        expected=word,
        fix=f"Give {word}, such as {info.key}=VALUE.",
    )
    if isinstance(value, bool):
        raise problem
    try:
        number = kind(value) if kind is float or isinstance(value, str) else _exact(value)
    except (TypeError, ValueError, OverflowError):
        raise problem from None
    if not math.isfinite(number) or abs(number) >= 2**64:
        raise problem
    if info.above is not None and not number > info.above:
        raise problem
    if info.at_least is not None and not number >= info.at_least:
        raise problem
    if info.below is not None and not number < info.below:
        raise problem
    if info.at_most is not None and not number <= info.at_most:
        raise problem
    return typing.cast("int | float", number)


def _exact(value: Any) -> int:
    number = int(value)
    if number != value:
        raise ValueError(value)
    return number


def _base_type(hint: Any) -> Any:
    """Return ``int`` for ``int | None``, and a hint that is no union as it is."""
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint
