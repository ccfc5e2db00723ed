"""Candidates: other methods and settings that take less memory, in the order in which they are to be preferred."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from zoexport import build
from zoexport.core.config import as_dict, fields
from zoexport.core.errors import ConfigError
from zoexport.methods import methods

_LEAST_TOKENS = 64
"""Shorter rows hold too little of an example to learn from."""


@dataclasses.dataclass(frozen=True)
class Option:
    """A candidate. ``changes``: the settings that are to be given for it, beside those given already."""

    plan: build.Plan
    changes: dict[str, Any]


def options(planned: build.Plan, given: Mapping[str, Any]) -> Iterator[Option]:
    """Candidates in the order of preference: first order before zeroth, then as much of what was asked for as can be.

    Of methods that can run layer by layer this way alone, as it takes the least memory.

    Args:
        planned: what was asked for. given: its settings that the user gave, by key.
    """
    asked = as_dict(planned.config)
    everywhere = {
        key: value for key, value in given.items() if all(key in known for known in _keys())
    }
    for name in _by_preference(planned):
        own = given if name == planned.method.name else everywhere
        for batch, seq_len in _shapes(asked["batch"], asked["seq_len"]):
            changes: dict[str, Any] = {"seq_len": seq_len, "batch": batch}
            known = fields(methods.get(name).config)
            if "split" in known and "layers" in known["split"][1].choices:
                changes["split"] = "layers"
                if asked["activations"] == "int8":
                    changes["activations"] = "fp32"
            try:
                candidate = build.plan(name, planned.target.name, {**own, **changes})
            except ConfigError:  # a setting that this method does not take
                continue
            if as_dict(candidate.config).get("mask", "") is None and own is everywhere:
                continue  # needs a file that the user did not speak of
            yield Option(candidate, changes)


def _keys() -> list[set[str]]:
    """Keys of each method's settings, without the learning rate, which is another for each."""
    return [set(fields(methods.get(name).config)) - {"lr"} for name in methods.names()]


def _by_preference(planned: build.Plan) -> list[str]:
    """First order first, then what was asked for, then what reads the weights once for all copies."""

    def rank(name: str) -> tuple[bool, bool, str]:
        config: Any = methods.get(name).config
        zeroth = not config.first_order
        return zeroth, name != planned.method.name, "" if config.together else name

    return sorted(methods.names(), key=rank)


def _shapes(batch: int, seq_len: int) -> Iterator[tuple[int, int]]:
    """Batch and length: first fewer rows, which ``accumulate`` makes up for, then shorter ones."""
    yield batch, seq_len
    if batch > 1:
        yield 1, seq_len
    while seq_len // 2 >= _LEAST_TOKENS:
        seq_len //= 2
        yield 1, seq_len
