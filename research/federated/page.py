"""A comparison of federated algorithms for people: a table and a picture in a page's marked part, and the figures."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.support import rates
from research.support.page import replace, seen_from
from zoexport.bench.output import markdown_table
from zoexport.core.files import write_json
from zoexport.report import new_figure, save_png


def mark_of(name: str) -> str:
    """What marks the part of a page that is about a study."""
    return f"report-federated-{name}"


def write(page: Path, folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part, and the picture and figures in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    draw(folder / f"{name}.png", result)
    write_json(folder / f"{name}.json", result)
    place = seen_from(page, folder)
    picture = f"![Held-out loss against operations and bytes]({place}/{name}.png)"
    text = "\n".join([picture, "", table(result), "", *_conditions(result)]) + "\n"
    replace(page, mark_of(name), text)


def best_rate(arm: Mapping[str, Any]) -> float | None:
    """The arm's, by the validation."""
    return rates.best_rate(
        arm["runs"], lambda run: _last(run)["validation"] if _ended(run) else None
    )


def to_reach(run: Mapping[str, Any], target: float) -> float | None:
    """Operations after which the held-out loss is ``target``, between two points; None where it never is."""
    for before, after in itertools.pairwise(run["points"]):
        if before["loss"] > target >= after["loss"]:
            share = (before["loss"] - target) / (before["loss"] - after["loss"])
            return float(before["flops"] + share * (after["flops"] - before["flops"]))
    return None


def table(result: Mapping[str, Any]) -> str:
    """A row an arm and rate, the rate that the validation chooses marked: losses over the seeds, and what was sent."""
    target = result["conditions"]["scale"]["target"]
    header = ["", "rate", "seeds", "rounds", "validation loss", "held-out loss", "least..most"]
    header += ["accuracy", f"TFLOP to {target:g}", "least..most"]
    header += ["largest upload, kB", "all up, MB"]
    rows = []
    for arm in result["arms"]:
        best = best_rate(arm)
        for rate in sorted({run["rate"] for run in arm["runs"]}):
            runs = [run for run in arm["runs"] if run["rate"] == rate]
            shown = f"**{rate:g}**" if rate == best else f"{rate:g}"
            row = [arm["label"], shown, len(runs), arm["rounds"]]
            if all(_ended(run) for run in runs):
                losses = [_last(run)["loss"] for run in runs]
                row.append(f"{statistics.mean(_last(run)['validation'] for run in runs):.3f}")
                row += [f"{statistics.mean(losses):.3f}", f"{min(losses):.3f}..{max(losses):.3f}"]
                row.append(f"{statistics.mean(_last(run)['accuracy'] for run in runs):.1%}")
                row += _reached([to_reach(run, target) for run in runs])
            else:
                ended = sum(_ended(run) for run in runs)
                row += [f"{len(runs) - ended} of {len(runs)} stopped", *[None] * 5]
            row.append(f"{max(run['upload_largest'] for run in runs) / 1e3:.1f}")
            up = [_last(run)["bytes_up"] for run in runs if run["points"]]
            row.append(f"{statistics.mean(up) / 1e6:.2f}" if up else None)
            rows.append(row)
    return markdown_table(header, rows)


def _reached(flops: Sequence[float | None]) -> list[str | None]:
    """Mean and extremes in TFLOP; how many of the runs came so far where not all did."""
    found = [one / 1e12 for one in flops if one is not None]
    if len(found) < len(flops):
        return [f"{len(found)} of {len(flops)} came so far", None]
    return [f"{statistics.mean(found):.3g}", f"{min(found):.3g}..{max(found):.3g}"]


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Each arm at its best rate: the mean held-out loss over the seeds, against operations and against bytes up."""
    figure = new_figure(path, 12, 4.5)
    axes = figure.subplots(1, 2, sharey=True)
    for number, arm in enumerate(result["arms"]):
        best = best_rate(arm)
        runs = [run for run in arm["runs"] if run["rate"] == best]
        if not runs:
            continue
        losses = _mean([[point["loss"] for point in run["points"]] for run in runs])
        flops = [point["flops"] / 1e12 for point in runs[0]["points"]]
        sent = _mean([[point["bytes_up"] / 1e6 for point in run["points"]] for run in runs])
        color = f"C{number}"
        label = f"{arm['label']}, rate {runs[0]['rate']:g}"
        axes[0].plot(flops, losses, color=color)
        axes[1].plot(
            sent[1:], losses[1:], color=color, marker=".", label=label
        )  # nothing was sent at first
    axes[0].set_xlabel("planned TFLOP of all clients")
    axes[1].set_xlabel("MB sent up")
    axes[1].set_xscale("log")
    axes[0].set_ylabel("held-out loss")
    axes[1].legend(fontsize="small", loc="upper right")
    for one in axes:
        one.axhline(math.log(2), color="gray", linestyle=":")  # a constant guess between two
        one.grid(alpha=0.3)
    save_png(figure, path)


def _mean(values: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.mean(column) for column in zip(*values, strict=True)]


def _ended(run: Mapping[str, Any]) -> bool:
    return run["diverged"] is None


def _last(run: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run["points"][-1]
    return found


def _conditions(result: Mapping[str, Any]) -> list[str]:
    """What it was measured with, as lines of a list."""
    found = result["conditions"]
    scale = found["scale"]
    common = ", ".join(f"{key}={value}" for key, value in found["common"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return [
        f"- `{found['command']}`",
        f"- {found['model']['name']}, film sentences (samples.py) dealt to {scale['clients']} clients "
        f"({scale['split']}), {scale['sample']} a round, {scale['steps']} steps each",
        f"- {scale['validated']} sentences that no client has choose the rate; losses and accuracies are those of "
        f"{scale['tested']} others; dotted: ln 2, a constant guess",
        *(
            line
            for arm in result["arms"]
            for line in rates.at_an_end(
                arm["label"], {run["rate"] for run in arm["runs"]}, best_rate(arm)
            )
        ),
        f"- every arm: {found['budget_flops'] / 1e12:.3g} planned TFLOP of all clients together; {common}",
        *(
            f"- {arm['label']}: "
            + ", ".join([arm["method"], *(f"{k}={v}" for k, v in arm["settings"].items())])
            + f"; algorithm {arm['algorithm']}"
            for arm in result["arms"]
        ),
        f"- {found['cpu']}, {found['cores']} cores, {found['system']}; {versions}, Python {found['python']}; "
        f"{found['date']}",
    ]
