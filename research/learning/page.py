"""A comparison of what methods learn, for people: a table and a picture in a page's marked part, and the figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.support.page import replace, seen_from
from zoexport.bench.output import busy_warning, markdown_table
from zoexport.core.files import write_json
from zoexport.report import new_figure, save_png

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def mark_of(name: str) -> str:
    """What marks the part of a page that is about a comparison."""
    return f"report-learning-{name}"


def write(page: Path, folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part, and the picture and figures in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    draw(folder / f"{name}.png", result)
    write_json(folder / f"{name}.json", result)
    place = seen_from(page, folder)
    picture = f"![Held-out loss against steps]({place}/{name}.png)"
    replace(
        page,
        mark_of(name),
        "\n".join([picture, "", table(result), "", *_conditions(result)]) + "\n",
    )


def table(result: Mapping[str, Any]) -> str:
    """A row an arm and rate: the last loss and accuracy, mean and range over the seeds."""
    header = ["method", "rate", "seeds", "steps", "s/step", "loss untrained", "trained"]
    header += ["least..most", "accuracy untrained", "trained", "least..most"]
    rows = []
    for arm in result["arms"]:
        for rate in result["conditions"]["comparison"]["rates"]:
            runs = [run for run in arm["runs"] if run["rate"] == rate]
            if runs:
                rows.append(_row(arm, rate, runs))
    return markdown_table(header, rows)


def _row(arm: Mapping[str, Any], rate: float, runs: list[Mapping[str, Any]]) -> list[Any]:
    last = [run["points"][-1] for run in runs]
    whole = [point for point in last if point["loss"] is not None]
    seconds = [run["seconds_per_step"] for run in runs if run["seconds_per_step"] is not None]
    row = [arm["label"], f"{rate:g}", len(runs), max(point["steps"] for point in last)]
    row.append(round(statistics.median(seconds), 2) if seconds else None)
    for key, form in (("loss", ".3f"), ("accuracy", ".1%")):
        row.append(format(arm["untrained"][key], form))
        if len(whole) < len(last):
            row += [f"{len(last) - len(whole)} of {len(last)} diverged", None]
        else:
            values = [point[key] for point in whole]
            row.append(format(statistics.mean(values), form))
            row.append(f"{min(values):{form}}..{max(values):{form}}")
    return row


def _conditions(result: Mapping[str, Any]) -> list[str]:
    """What it was measured with, as lines of a list."""
    found = result["conditions"]
    compared = found["comparison"]
    common = ", ".join(f"{key}={value}" for key, value in found["common"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    lines = [
        f"- `{found['command']}`",
        f"- {found['model']['name']}, film sentences (samples.py), {compared['tested']} held-out ones evaluated",
        f"- all: {common}",
        *(
            f"- {arm['label']}: "
            + ", ".join(
                [arm["method"], *(f"{key}={value}" for key, value in arm["settings"].items())]
            )
            for arm in result["arms"]
        ),
        f"- {found['cpu']}, {found['cores']} cores, {found['system']}; load average "
        f"{' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        lines.append(f"- {warning}; losses and accuracies do not depend on it")
    return lines


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Draw held-out loss against steps, a panel a rate, a line a seed, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the place cannot be written.
    """
    rates = result["conditions"]["comparison"]["rates"]
    figure = new_figure(path, 3.6 * len(rates), 3.6)
    panels = figure.subplots(1, len(rates), sharey=True, squeeze=False)[0]
    for axes, rate in zip(panels, rates, strict=True):
        for number, arm in enumerate(result["arms"]):
            color = COLORS[number % len(COLORS)]
            runs = [run for run in arm["runs"] if run["rate"] == rate]
            for count, run in enumerate(runs):
                points = [(0, arm["untrained"]["loss"])]
                points += [(p["steps"], p["loss"]) for p in run["points"] if p["loss"] is not None]
                label = arm["label"] if count == 0 else None
                axes.plot(*zip(*points, strict=True), "o-", markersize=3, label=label, color=color)
        axes.set_title(f"rate {rate:g}", fontsize="medium")
        axes.set_xlabel("steps")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("held-out loss")
    panels[0].legend(fontsize="small")
    save_png(figure, path)
