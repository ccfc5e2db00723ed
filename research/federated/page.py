"""A comparison of federated algorithms for people: a table in a page's marked part, and the raw runs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.support import rates
from research.support.page import publish
from zoexport.core.files import write_json
from zoexport.tools.bench.output import markdown_table


def mark_of(name: str) -> str:
    """What marks the part of a page that is about a study."""
    return f"report-federated-{name}"


def write(page: Path, folder: Path, name: str, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part and its tables, and write the raw runs to a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(folder / f"{name}.json", result)
    text = "\n".join([table(result), "", *_conditions(result)]) + "\n"
    publish(page, mark_of(name), text)


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
        f"{scale['tested']} others; a constant guess has ln 2",
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
