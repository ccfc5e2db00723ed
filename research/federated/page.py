"""A comparison of federated algorithms for people: a table and a picture in a page's marked part, and the figures."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.support.page import replace, seen_from
from zoexport.bench.output import markdown_table
from zoexport.core.files import write_json
from zoexport.report import new_figure, save_png

MARK = "report-federated"


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part, and the picture and figures in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    draw(folder / "loss.png", result)
    write_json(folder / "result.json", result)
    place = seen_from(page, folder)
    picture = f"![Held-out loss against operations and bytes]({place}/loss.png)"
    replace(page, MARK, "\n".join([picture, "", table(result), "", *_conditions(result)]) + "\n")


def rates(arm: Mapping[str, Any]) -> dict[float, list[Mapping[str, Any]]]:
    """An arm's runs by their rate."""
    found: dict[float, list[Mapping[str, Any]]] = {}
    for run in arm["runs"]:
        found.setdefault(run["rate"], []).append(run)
    return found


def best(arm: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs of the rate whose last losses have the least mean, of those without one that diverged."""
    whole = [runs for runs in rates(arm).values() if all(_ended(run) for run in runs)]
    if not whole:
        return []
    return min(whole, key=lambda runs: statistics.mean(_last(run)["loss"] for run in runs))


def table(result: Mapping[str, Any]) -> str:
    """A row an arm and rate: the last held-out loss and accuracy over the seeds, and what was sent."""
    header = [
        "",
        "rate",
        "seeds",
        "rounds",
        "loss",
        "least..most",
        "accuracy",
        "largest upload, kB",
        "all up, MB",
    ]
    rows = []
    for arm in result["arms"]:
        for rate, runs in sorted(rates(arm).items()):
            row = [arm["label"], f"{rate:g}", len(runs), arm["rounds"]]
            if all(_ended(run) for run in runs):
                losses = [_last(run)["loss"] for run in runs]
                row += [f"{statistics.mean(losses):.3f}", f"{min(losses):.3f}..{max(losses):.3f}"]
                row.append(f"{statistics.mean(_last(run)['accuracy'] for run in runs):.1%}")
            else:
                ended = sum(_ended(run) for run in runs)
                row += [f"{len(runs) - ended} of {len(runs)} stopped", None, None]
            row.append(f"{max(run['upload_largest'] for run in runs) / 1e3:.1f}")
            up = [_last(run)["bytes_up"] for run in runs if run["points"]]
            row.append(f"{statistics.mean(up) / 1e6:.2f}" if up else None)
            rows.append(row)
    return markdown_table(header, rows)


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Each arm at its best rate: the mean held-out loss over the seeds, against operations and against bytes up."""
    figure = new_figure(path, 12, 4.5)
    axes = figure.subplots(1, 2, sharey=True)
    for number, arm in enumerate(result["arms"]):
        runs = best(arm)
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
        f"- {found['model']['name']}, film sentences (samples.py) dealt to {scale['clients']} clients, "
        f"{scale['sample']} a round, {scale['steps']} steps each; {scale['tested']} held-out sentences",
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
