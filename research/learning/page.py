"""A comparison of what methods learn, for people: tables in a page's marked part, and the raw runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy import stats

from research.support import rates
from research.support.page import publish
from zoexport.core.files import write_json
from zoexport.data import samples
from zoexport.tools.bench.output import busy_warning, markdown_table

_NARROWED = ("- the first seed chooses the rate, with which alone the others are trained",)


def mark_of(name: str) -> str:
    """What marks the part of a page that is about a comparison."""
    return f"report-learning-{name}"


def write(page: Path, folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part and its tables, and write the raw runs to a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(folder / f"{name}.json", result)
    lines = [table(result), "", *differences(result)]
    if result["conditions"]["comparison"].get("target") is not None:
        lines += ["", until_target(result), ""]
    text = "\n".join([*lines, *_conditions(result)]) + "\n"
    publish(page, mark_of(name), text, runs=runs_table(result))


def table(result: Mapping[str, Any]) -> str:
    """A row an arm and rate, the rate that the validation chooses marked: losses and accuracies over the seeds."""
    header = ["method", "rate", "seeds", "steps", "TFLOP", "GB moved", "validation loss"]
    header += ["held-out loss", "least..most", "accuracy", "least..most"]
    rows = []
    for arm in result["arms"]:
        test = arm["untrained"]
        blank = ["untrained", *[None] * 5]
        rows.append(
            [arm["label"], *blank, f"{test['loss']:.3f}", None, f"{test['accuracy']:.1%}", None]
        )
        best = best_rate(arm)
        for rate in arm["rates"]:
            runs = runs_at(arm, rate)
            if runs:
                rows.append(_row(arm, rate, runs, is_best=rate == best))
    return markdown_table(header, rows)


def runs_table(result: Mapping[str, Any]) -> str:
    """Return a row for each run, for the CSV file: what it ended with, unrounded where the page rounds."""
    header = ["method", "rate", "seed", "steps", "s/step", "validation loss", "held-out loss"]
    rows = [
        [
            arm["label"],
            f"{run['rate']:g}",
            run["seed"],
            run["points"][-1]["steps"],
            run["seconds_per_step"],
            *(
                None if found is None else f"{found[key]:.5f}"
                for found, key in (
                    (run["points"][-1] if run["test"] else None, "loss"),
                    (run["test"], "loss"),
                    (run["test"], "accuracy"),
                )
            ),
        ]
        for arm in result["arms"]
        for run in arm["runs"]
    ]
    return markdown_table([*header, "accuracy"], rows)


def best_rate(arm: Mapping[str, Any]) -> float | None:
    """The arm's, by the validation."""
    return rates.best_rate(arm["runs"], lambda run: run["points"][-1]["loss"])


def _row(
    arm: Mapping[str, Any], rate: float, runs: list[Mapping[str, Any]], *, is_best: bool
) -> list[Any]:
    steps = max(run["points"][-1]["steps"] for run in runs)
    row = [arm["label"], f"**{rate:g}**" if is_best else f"{rate:g}", len(runs), steps]
    planned = arm["planned"]
    row += [f"{tflop(arm, steps):.4g}", f"{steps * planned['bytes'] / 1e9:.4g}"]
    tested = [run["test"] for run in runs if run["test"] is not None]
    if len(tested) < len(runs):
        return [*row, f"{len(runs) - len(tested)} of {len(runs)} diverged", *[None] * 4]
    row.append(f"{statistics.mean(run['points'][-1]['loss'] for run in runs):.3f}")
    for key, form in (("loss", ".3f"), ("accuracy", ".1%")):
        values = [test[key] for test in tested]
        row += [f"{statistics.mean(values):{form}}", f"{min(values):{form}}..{max(values):{form}}"]
    return row


def differences(result: Mapping[str, Any]) -> list[str]:
    """Of each arm but the first: the held-out loss less the first's, each at its best rate, seed by seed.

    The interval is Student's, of 95 %, over the seeds that both have; there is none of a single seed.
    """
    first, *others = result["arms"]
    lines = []
    for arm in others:
        if line := apart(_tests(arm), _tests(first)):
            lines.append(f"- {arm['label']} less {first['label']}, each at its best rate: {line}")
    return lines


def apart(losses: Mapping[int, float], others: Mapping[int, float]) -> str:
    """The mean over the seeds that both have of what ``losses`` are above ``others``, with the interval.

    Empty where they have none.
    """
    found = [losses[seed] - others[seed] for seed in sorted(losses.keys() & others.keys())]
    if not found:
        return ""
    line = f"{statistics.mean(found):+.3f}"
    if len(found) > 1:
        error = statistics.stdev(found) / math.sqrt(len(found))
        half = error * float(stats.t.ppf(0.975, len(found) - 1))
        line += f" +- {half:.3f} (95 %, {len(found)} seeds)"
    return line


def tflop(arm: Mapping[str, Any], steps: float) -> float:
    """Operations of so many steps of an arm, in 10^12."""
    return steps * float(arm["planned"]["flops"]) / 1e12


def until_target(result: Mapping[str, Any]) -> str:
    """A row an arm and rate: operations and steps until the validation's loss is the comparison's target."""
    target = result["conditions"]["comparison"]["target"]
    header = ["method", "rate", "seeds", f"TFLOP to {target:g}", "least..most", "steps"]
    rows: list[list[Any]] = []
    for arm in result["arms"]:
        for rate in arm["rates"]:
            seeds = sum(run["rate"] == rate for run in arm["runs"])
            label = f"**{rate:g}**" if rate == best_rate(arm) else f"{rate:g}"
            if spent := until(arm, rate, target):
                mean = statistics.mean(spent)
                least = f"{min(spent):.0f}..{max(spent):.0f}"
                row = [seeds, f"{mean:.0f}", least, f"{mean / tflop(arm, 1):.0f}"]
            elif seeds:
                row = [seeds, "not by all seeds", None, None]
            else:
                continue
            rows.append([arm["label"], label, *row])
    return markdown_table(header, rows)


def until(arm: Mapping[str, Any], rate: float, target: float) -> list[float] | None:
    """TFLOP after which each seed's validation loss is at most ``target``; None where one's is not.

    Between two evaluations losses are taken to lie on a line.
    """
    found = []
    for run in runs_at(arm, rate):
        before: Mapping[str, Any] | None = None
        for point in run["points"]:
            if point["loss"] is None:
                return None
            if point["loss"] <= target:
                share = 1.0
                if before is not None:
                    share = (before["loss"] - target) / (before["loss"] - point["loss"])
                begin = 0 if before is None else before["steps"]
                found.append(tflop(arm, begin + share * (point["steps"] - begin)))
                break
            before = point
        else:
            return None
    return found


def runs_at(arm: Mapping[str, Any], rate: float | None) -> list[Mapping[str, Any]]:
    """An arm's runs of one rate."""
    return [run for run in arm["runs"] if run["rate"] == rate]


def _tests(arm: Mapping[str, Any]) -> dict[int, float]:
    """The held-out loss by seed, at the best rate."""
    found = [run for run in runs_at(arm, best_rate(arm)) if run["test"] is not None]
    return {run["seed"]: run["test"]["loss"] for run in found}


def ends(result: Mapping[str, Any]) -> list[str]:
    """Which arms were best at an end of the rates that were tried, as lines of a list."""
    return [
        line
        for arm in result["arms"]
        for line in rates.at_an_end(arm["label"], arm["rates"], best_rate(arm))
    ]


def settings(result: Mapping[str, Any]) -> list[str]:
    """Each arm's method and settings, as lines of a list."""
    found = []
    for arm in result["arms"]:
        words = [arm["method"], *(f"{key}={value}" for key, value in arm["settings"].items())]
        found.append(f"- {arm['label']}: {', '.join(words)}")
    return found


def _conditions(result: Mapping[str, Any]) -> list[str]:
    """What it was measured with, as lines of a list."""
    found = result["conditions"]
    compared = found["comparison"]
    common = ", ".join(f"{key}={value}" for key, value in found["common"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        f"- `{found['command']}`",
        f"- {found['model']['name']}, {samples.TASKS[compared['task']].words} (samples.py): "
        f"{compared['validated']}, on which no run trains, "
        f"choose the rate; losses and accuracies are those of {compared['tested']} others",
        *(_NARROWED if compared.get("narrows") else ()),
        *ends(result),
        "- TFLOP and GB: of the steps, as `zoexport plan` counts operations and bytes that are read and written",
        f"- all: {common}",
        *settings(result),
        f"- {found['cpu']}, {found['cores']} cores, {found['system']}; load average "
        f"{' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        lines.append(f"- {warning}; losses and accuracies do not depend on it")
    return lines
