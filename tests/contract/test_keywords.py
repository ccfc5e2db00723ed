"""Flags of commands are keyword arguments of the Python functions, typed as in the methods' dataclasses."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import click
import pytest

import zoexport
from zoexport.cli.main import cli
from zoexport.core import keywords
from zoexport.core.config import fields
from zoexport.methods import methods

CALLS = [
    ("compile", zoexport.compile, keywords.COMPILE),
    ("train", zoexport.Bundle.train, keywords.TRAIN),
    ("finetune", zoexport.finetune, keywords.FINETUNE),
]


def hint(key: str) -> str:
    """Return the annotation of a setting: the type of its field, with the choices of all methods."""
    kinds: set[str] = set()
    choices: dict[str, None] = {}
    for config in (methods.get(name).config for name in methods.names()):
        if key in fields(config):
            field, info = fields(config)[key]
            kind = typing.get_type_hints(config)[field.name]
            kinds.add(getattr(kind, "__name__", str(kind).removesuffix(" | None")))
            choices |= dict.fromkeys(info.choices)
    (kind,) = kinds
    return f"Literal[{', '.join(map(repr, choices))}] | None" if choices else f"{kind} | None"


@pytest.mark.parametrize(("verb", "function", "keys"), CALLS, ids=[call[0] for call in CALLS])
def test_flags_are_typed_keyword_arguments(
    verb: str, function: Callable[..., Any], keys: tuple[str, ...]
) -> None:
    known = {
        keywords.keyword(key)
        for name in methods.names()
        for key in fields(methods.get(name).config)
    }
    parameters = inspect.signature(function).parameters
    flags = {parameter.name for parameter in cli.commands[verb].params}
    flags -= {"choices"}  # classes of the data, and not the setting of this name
    expected = {keywords.keyword(key) for key in keys}
    assert flags & known == parameters.keys() & known == expected
    assert "settings" in parameters
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key in keys:
        parameter = parameters[keywords.keyword(key)]
        assert parameter.default is None and parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.annotation == hint(key), key


@pytest.mark.parametrize("key", [*keywords.COMPILE, *keywords.TRAIN])
def test_choices_of_flags_are_those_of_the_methods(key: str) -> None:
    verb = "compile" if key in keywords.COMPILE else "train"
    (option,) = (one for one in cli.commands[verb].params if one.name == keywords.keyword(key))
    if isinstance(option.type, click.Choice):
        literal = hint(key).removesuffix(" | None")
        assert set(option.type.choices) == set(typing.get_args(eval(literal, vars(typing))))
    else:
        assert not hint(key).startswith("Literal")


def test_keyword_arguments_override_the_dict() -> None:
    found = keywords.given({"lora_r": 4, "eps": 1}, lora_r=8, weights=None)
    assert found == {"lora_r": 8, "eps": 1}
    assert keywords.given(None) == {}
