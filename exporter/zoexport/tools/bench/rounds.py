"""Rounds: every variant in turn takes some steps, again and again, so that a noisy machine is noisy for all."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zoexport.core.files import atomic_file
from zoexport.core.progress import Progress
from zoexport.tools.bench.matrix import Variant
from zoexport.tools.bench.runner import Sample

Measure = Callable[[Variant, int, int], Sample]
"""(variant, steps, warm-up steps) to a sample."""

_ROUND_SECONDS = 5.0
"""A turn takes about this long at most: fewer steps where a step is slow, but at least this many:"""
_LEAST_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """Amount of measurement.

    Attributes:
        rounds: turns of every variant.
        steps: maximum number of steps in a turn.
        warmup: steps before them that are not counted.
    """

    rounds: int
    steps: int
    warmup: int


Round = Mapping[str, Sample]
"""One sample of every variant, by the variant's text."""


def measure(
    variants: Sequence[Variant],
    plan: Plan,
    measure_one: Measure,
    partial: Path,
    progress: Progress,
) -> tuple[list[Round], int]:
    """Measure every variant in every round; rounds that an earlier run completed are taken from ``partial``.

    Before the first round each variant starts once unmeasured: files are then in memory, caches written, and the time
    of a step is known.

    Args:
        partial: the file that keeps complete rounds, a line each. The caller removes it.

    Returns:
        The rounds, and how many of them are an earlier run's.
    """
    done = _read(partial, variants, plan.rounds)
    resumed = len(done)
    if resumed == plan.rounds:
        return done, resumed
    steps = {}
    for number, variant in enumerate(variants):
        progress(f"warming up {variant}", number / len(variants))
        slowest = min(measure_one(variant, 2, 1).seconds)
        steps[variant] = max(_LEAST_STEPS, min(plan.steps, int(_ROUND_SECONDS / slowest)))
    turns = (plan.rounds - resumed) * len(variants)
    for number in range(resumed, plan.rounds):
        # Another one goes first in each round, so that none always follows the same one.
        first = number % len(variants)
        samples: dict[str, Sample] = {}
        for variant in [*variants[first:], *variants[:first]]:
            share = ((number - resumed) * len(variants) + len(samples)) / turns
            progress(f"round {number + 1} of {plan.rounds}: {variant}", share)
            samples[str(variant)] = measure_one(variant, steps[variant], plan.warmup)
        done.append(samples)
        _write(partial, done)
    return done, resumed


def _read(partial: Path, variants: Sequence[Variant], most: int) -> list[Round]:
    names = {str(variant) for variant in variants}
    done: list[Round] = []
    with contextlib.suppress(OSError, ValueError, TypeError):  # none, or another version's
        for line in partial.read_text(encoding="utf-8").splitlines():
            samples = {name: Sample(**entry) for name, entry in json.loads(line).items()}
            if samples.keys() != names:
                return []
            done.append(samples)
    return done[:most]


def _write(partial: Path, done: Sequence[Round]) -> None:
    lines = (
        json.dumps({name: dataclasses.asdict(sample) for name, sample in samples.items()})
        for samples in done
    )
    with atomic_file(partial) as temporary:
        temporary.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
