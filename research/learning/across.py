"""Arms of two results at the same operations: the validation's losses, seed by seed.

``python -m research.learning.across PAGE FIRST LABEL SECOND LABEL`` compares an arm of the figures ``FIRST`` with one
of ``SECOND`` after as many operations as the shorter of both took, each at the rate that is best there, and renews the
page's lines between ``<!-- report-across -->``. Both results must have the same validation sentences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.learning.page import apart, tflop
from research.support import rates
from research.support.command import Clock, exit_status
from research.support.page import marked, publish
from zoexport.core.errors import ConfigError
from zoexport.tools.bench.output import markdown_table

MARK = "report-across"
Run = Mapping[str, Any]


def loss_after(arm: Mapping[str, Any], run: Run, operations: float) -> float | None:
    """A run's validation loss after so many TFLOP; between two evaluations losses are taken to lie on a line.

    None where it diverged, ended before, or was not evaluated yet.
    """
    before: tuple[float, float] | None = None
    for point in run["points"]:
        if point["loss"] is None:
            return None
        at, loss = tflop(arm, point["steps"]), float(point["loss"])
        if at >= operations:
            if before is None:
                return loss if at == operations else None
            share = (operations - before[0]) / (at - before[0])
            return before[1] + share * (loss - before[1])
        before = at, loss
    return None


def compared(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """A table of both arms after as many operations as the one whose runs are shorter took, and their difference.

    Raises:
        ConfigError: an arm diverged, or was not evaluated so early.
    """
    operations = min(
        max(tflop(arm, point["steps"]) for run in arm["runs"] for point in run["points"])
        for arm in (first, second)
    )
    rows, losses = [], []
    for arm in (first, second):
        rate, of_seeds = _best(arm, operations)
        if not of_seeds:
            raise ConfigError(
                f"arm {arm['label']!r}",
                found=f"no loss after {operations:.4g} TFLOP, where the shorter of both arms ends",
                expected="an evaluation by then, of a run that did not diverge",
                fix="Compare other arms, or evaluate more often.",
            )
        losses.append(of_seeds)
        found = of_seeds.values()
        mean, extremes = statistics.mean(found), f"{min(found):.3f}..{max(found):.3f}"
        rows.append([arm["label"], f"{rate:g}", len(of_seeds), f"{mean:.3f}", extremes])
    header = ["method", "rate", "seeds", f"validation loss after {operations:.4g} TFLOP"]
    table = markdown_table([*header, "least..most"], rows)
    line = apart(losses[1], losses[0])
    return f"{table}\n\n- {second['label']} less {first['label']}: {line}\n"


def _best(arm: Mapping[str, Any], operations: float) -> tuple[float | None, dict[int, float]]:
    """The rate that is best there, and the losses by seed."""

    def loss(run: Run) -> float | None:
        return loss_after(arm, run, operations)

    rate = rates.best_rate(arm["runs"], loss)
    found = {run["seed"]: loss(run) for run in arm["runs"] if run["rate"] == rate}
    return rate, {seed: one for seed, one in found.items() if one is not None}


def arm_of(figures: Path, label: str) -> dict[str, Any]:
    """The arm of a result.

    Raises:
        ConfigError: the file cannot be read, or has no such arm.
    """
    try:
        arms = json.loads(figures.read_text(encoding="utf-8"))["arms"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"figures {figures}",
            found=str(error),
            expected="the result of a comparison, with arms",
            fix="Check the path.",
        ) from error
    for arm in arms:
        if arm["label"] == label:
            return dict(arm)
    raise ConfigError(
        f"arm {label!r} of {figures}",
        found="no such arm",
        expected=f"one of {', '.join(arm['label'] for arm in arms)}",
        fix="Check the label.",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Arms of two results at the same operations.")
    parser.add_argument("page", type=Path, help="the page that is renewed")
    for which in ("first", "second"):
        parser.add_argument(which, type=Path, help="figures, as JSON")
        parser.add_argument(f"{which}_label", help="of its arm")
    given = parser.parse_args(arguments)

    def measured(_: Clock) -> None:
        marked(given.page, MARK)
        first = arm_of(given.first, given.first_label)
        second = arm_of(given.second, given.second_label)
        command = (
            f'- `python -m research.learning.across {given.page} {given.first} "{given.first_label}" '
            f'{given.second} "{given.second_label}"`'
        )
        publish(given.page, MARK, f"{compared(first, second)}{command}\n")

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main())
