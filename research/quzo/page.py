"""The report on QuZO's estimators for people: tables in a page's marked part, and the raw runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.quzo.training import ESTIMATORS
from research.support.page import publish
from zoexport.core.files import write_json
from zoexport.tools.bench.output import busy_warning, markdown_table

MARK = "report-quzo"

_BIAS = """**Bias.** `<mean estimate, g> / |g|^2 - 1`, with 99 % intervals. Theory is exact for a linear loss.
`paired`: less the same of RGE with the same u, {directions:,} of them. `rounding`: `paired` less the
clamp's part, which is known; it is `resolved` where its interval is without 0.
"""
_ERROR = """**Error.** `|mean estimate - g| / |g|` of means over n directions: the average of {groups} such means
(n = {few:,}) and of {longer} (n = {many:,}). `bias alone` remains for any n: how far the estimator's mean is from
RGE's, without the noise's part, from the same u.
"""
_TRAINING = """**Training** (figure 3b). The loss, averaged over the last quarter of {steps:,} steps: mean and extremes
of {seeds} seeds. `E[u1^2]`: Q-RGE1's mean step is so many times Q-RGE2's. `rounded`: the loss of the teacher's weights,
rounded to the nearest.
"""


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part and its tables, and write the raw runs to a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(folder / "quzo.json", result)
    publish(page, MARK, markdown(result))


def markdown(result: Mapping[str, Any]) -> str:
    """The marked part."""
    plan, training = result["conditions"]["plan"], result["conditions"]["training"]
    few, many = plan["directions"], plan["directions"] * plan["joined"]
    parts = [_BIAS.format(directions=few * plan["groups"]), bias(result), ""]
    parts += [
        _ERROR.format(
            groups=plan["groups"], few=few, longer=plan["groups"] // plan["joined"], many=many
        ),
        error(result),
        "",
    ]
    parts += [_TRAINING.format(steps=training["steps"], seeds=training["seeds"])]
    parts += [trained(result), ""]
    return "\n".join([*parts, *_conditions(result)]) + "\n"


def bias(result: Mapping[str, Any]) -> str:
    """A row an estimator: theory, and the measured bias with and without its pair."""
    plan = result["conditions"]["plan"]
    few, whole = plan["directions"], plan["directions"] * plan["groups"]
    header = ["estimator", "theory", "of it clamp", f"n = {few:,}", f"n = {whole:,}"]
    header += ["paired", "rounding", "resolved"]
    rows: list[list[Any]] = []
    for one in result["estimators"]:
        row = [one["name"], _percent(one["theory"]["mean"] - 1), _percent(one["clamp"])]
        row += [_interval(*one["few"]), _interval(*one["all"])]
        if "paired" in one:
            middle, half = one["paired"]
            rest = middle - one["clamp"]
            row += [_interval(middle, half), _interval(rest, half)]
            row += ["yes" if abs(rest) > half else "no"]
        else:
            row += [None, None, None]
        rows.append(row)
    return markdown_table(header, rows)


def error(result: Mapping[str, Any]) -> str:
    """A row an estimator: the relative l2 error of short and long means, and of the mean itself."""
    plan = result["conditions"]["plan"]
    counts = [plan["directions"], plan["directions"] * plan["joined"]]
    header = ["estimator"]
    header += [title for count in counts for title in (f"n = {count:,}", "theory")]
    header += ["bias alone", "theory"]
    rows: list[list[Any]] = []
    for one in result["estimators"]:
        row: list[Any] = [one["name"]]
        for each in one["errors"]:
            if each["n"] in counts:
                middle, half = each["interval"]
                row += [f"{middle:.3f} ± {half:.3f}", f"{each['theory']:.3f}"]
        if "bias" in one:
            middle, half = one["bias"]
            least, most = (_root(middle + sign * half) for sign in (-1, 1))
            row += [f"{_root(middle):.2%} ({least:.2%}..{most:.2%})"]
            row += [f"{abs(one['theory']['mean'] - 1):.2%}"]
        else:
            row += [None, None]
        rows.append(row)
    return markdown_table(header, rows)


def trained(result: Mapping[str, Any]) -> str:
    """A row a task, grid and rate, the estimators side by side."""
    header = ["task", "weights", "eps", "E[u1^2]", "rate", "untrained"]
    header += [title for name in ESTIMATORS for title in (name, "least..most")] + ["rounded"]
    rows: list[list[Any]] = []
    for run in result["training"]:
        for number, rate in enumerate(run["rates"]):
            row = [run["task"], f"INT{run['bits']}", f"{run['eps']:g}", f"{run['square']:.3f}"]
            row += [f"{rate:g}", f"{run['untrained']:.3f}"]
            for each in run["losses"]:
                last = [statistics.mean(notes[-len(notes) // 4 :]) for notes in each[number]]
                row += [f"{statistics.mean(last):.3f}", f"{min(last):.3f}..{max(last):.3f}"]
            rows.append([*row, f"{run['rounded']:.3f}"])
    return markdown_table(header, rows)


def _percent(share: float) -> str:
    return f"{share:+.2%}" if share else "0"


def _interval(middle: float, half: float) -> str:
    return f"{middle:+.2%} ± {half:.2%}"


def _root(square: float) -> float:
    """The root of an estimated square, which may lie below zero."""
    return math.sqrt(max(square, 0))


def _conditions(result: Mapping[str, Any]) -> list[str]:
    """What it was measured with, as lines of a list."""
    found = result["conditions"]
    plan, training = found["plan"], found["training"]
    block = plan["block"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        f"- `{found['command']}`",
        f"- one encoder block of {found['weights']:,} weights: width {block['width']}, {block['heads']} heads, hidden "
        f"{block['hidden']}, GELU, layer norms without weights; normal weights and inputs, mean squared error",
        f"- estimators: fp64, {plan['tokens']} tokens, eps {plan['eps']:g}, seed {plan['seed']}; INTb has "
        "L = 2^(b-1) - 1 and s_u = L / 3: levels reach three standard deviations",
        f"- training: fp32 over whole numbers, one scale an output row; {training['examples']} examples of "
        f"{training['tokens']} tokens in one batch, {training['queries']} queries, targets of a teacher whose weights "
        f"are (start + {training['change']:g} noise) / sqrt(1 + {training['change'] ** 2:g}); perturbations have the "
        "weights' bits, eps and rates are in grid steps, s_u = eps; both estimators see the same u and roundings",
        "- `labels`: one number a sequence, the first output averaged over tokens; `outputs`: all outputs",
        f"- {found['cpu']}, {found['cores']} cores, {found['system']}; load average "
        f"{' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        lines.append(f"- {warning}; nothing here is a time")
    return lines
