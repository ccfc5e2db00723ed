"""The report on masks for people: tables and pictures in a page's marked part, and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.masks.gradients import TEXTS, TIMES
from research.masks.training import DYNAMIC, ORDER, best
from research.support.page import replace, seen_from
from zoexport.bench.output import busy_warning, markdown_table
from zoexport.core.files import write_json
from zoexport.report import new_figure, save_png

MARK = "report-masks"
COLORS = {
    "task, chosen anew": "tab:red",
    "task": "tab:orange",
    "corpus": "tab:blue",
    "grasp": "tab:purple",
    "smallest": "tab:green",
    "largest": "tab:brown",
    "random": "tab:gray",
}
"""In the order of tables and legends."""

_COVERAGE = """**Coverage.** The share of a text's squared gradient norm that lies in a mask, before and after
fine-tuning (figure 3). `corpus` and `task` are the sensitive masks of these texts; all masks are chosen before
fine-tuning, but for `task, chosen anew` (the paper's "dyn."), which is chosen at the time that is looked at. Held-out
texts choose nothing.
"""
_CURVES = """**Cumulative squares.** How much of a layer's squared gradient norm lies in such a share of its elements,
the largest ones: mean and standard deviation over {layers} linear weights (figure 2), before fine-tuning; the picture
has both.
"""
_OVERLAP = """**Overlap.** The share of the places that the largest squares of one text have in common with another's
(figures 12 and 13), with density {density:g}; the picture has the other densities.
"""
_ACCURACY = """**Accuracy after training** (figure 6a), and with masks that are chosen anew during it (`dynamic`,
figure 6b). The rate is {promises} over the share of the task's squared norm that the mask covers. `untrained` is
the bundle as compiled: the chosen weights are fp16 already then.
"""


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part, and the pictures and figures in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    draw_coverage(folder / "coverage.png", result)
    draw_curves(folder / "curves.png", result)
    draw_overlap(folder / "overlap.png", result)
    if result["trained"]:
        draw_accuracy(folder / "accuracy.png", result)
    write_json(folder / "masks.json", result)
    place = seen_from(page, folder)
    replace(page, MARK, markdown(result, f"{place}/"))


def markdown(result: Mapping[str, Any], place: str) -> str:
    """The marked part, whose pictures are at ``place``."""
    density = _usual(result)
    found = result["conditions"]
    promises = " or ".join(f"{each:g}" for each in found["plan"]["promises"])
    parts = [_COVERAGE, f"![Coverage against density]({place}coverage.png)", ""]
    parts += [coverage(result), "", _CURVES.format(layers=result["layers"])]
    parts += [f"![Cumulative squares of layers]({place}curves.png)", "", curves(result), ""]
    parts += [_OVERLAP.format(density=result["densities"][density])]
    parts += [f"![Overlap of the largest squares]({place}overlap.png)", ""]
    parts += [overlap(result, density), "", _ACCURACY.format(promises=promises)]
    if result["trained"]:
        parts += [f"![Accuracy after training]({place}accuracy.png)", "", accuracy(result), ""]
        if missing := _missing(result):
            parts += [f"Some or all runs of these are not measured yet: {missing}.", ""]
    else:
        parts += ["Not measured yet: run `make report-masks`.", ""]
    return "\n".join([*parts, *conditions(result)]) + "\n"


def coverage(result: Mapping[str, Any]) -> str:
    """A row a mask and density, a column a text and time."""
    columns = [(text, time) for text in TEXTS for time in TIMES]
    shares = _shares(result)
    rows = [
        [
            mask,
            f"{density:g}",
            *(_percent(shares[mask, text, time][number]) for text, time in columns),
        ]
        for number, density in enumerate(result["densities"])
        for mask in COLORS
    ]
    return markdown_table(["mask", "density", *(", ".join(column) for column in columns)], rows)


def curves(result: Mapping[str, Any]) -> str:
    """A row a text, a column a whole power of ten."""
    fractions = result["fractions"]
    shown = [n for n in range(len(fractions)) if n % 4 == 0 and fractions[n] < 1]
    rows: list[list[Any]] = [
        [one["text"], *(f"{one['mean'][n]:.1%} ± {one['std'][n]:.1%}" for n in shown)]
        for one in result["curves"]
        if one["time"] == TIMES[0]
    ]
    return markdown_table(["text", *(f"{fractions[n]:g}" for n in shown)], rows)


def overlap(result: Mapping[str, Any], density: int) -> str:
    """Every text with every text."""
    names = result["overlap"]["names"]
    table = result["overlap"]["shares"][density]
    rows = [
        [name, *(_percent(share) for share in row)] for name, row in zip(names, table, strict=True)
    ]
    return markdown_table(["", *names], rows)


def accuracy(result: Mapping[str, Any]) -> str:
    """A row a run."""
    header = ["mask", "density", "rate", "steps", "s/step", "loss untrained", "trained"]
    header += ["accuracy untrained", "trained"]
    rows = [
        [
            _name(one),
            f"{one['density']:g}",
            f"{run['rate']:g}",
            run["steps"],
            run["seconds_per_step"],
            f"{one['untrained']['loss']:.4f}",
            "diverged" if run["loss"] is None else f"{run['loss']:.4f}",
            f"{one['untrained']['accuracy']:.1%}",
            None if run["accuracy"] is None else f"{run['accuracy']:.1%}",
        ]
        for one in result["trained"]
        for run in one["runs"]
    ]
    return markdown_table(header, rows)


def conditions(result: Mapping[str, Any]) -> list[str]:
    """What it was measured with, as lines of a list."""
    found = result["conditions"]
    sizes, plan, tuned = found["sizes"], found["plan"], result["tuning"]["loss"]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    phases = max([run.get("phases", 0) for one in result["trained"] for run in one["runs"]] + [0])
    lines = [
        f"- `{found['command']}`",
        f"- {found['model']['name']}, {result['weights']:,} linear weights. Corpus: news of the Brown corpus, its last "
        "four texts held out. Task: film sentences (samples.py), the loss of the label alone",
        f"- gradients: {sizes['sequences']} rows of plain text, {sizes['task_sequences']} sentences, "
        f"{sizes['grasp_sequences']} rows for grasp; {sizes['seq_len']} tokens or fewer, seed {sizes['seed']}, fp32",
        f"- fine-tuning: all weights, {sizes['tuning_steps']} steps of Adam, {sizes['tuning_batch']} sentences each, "
        f"rate {sizes['tuning_rate']:g} falling to 0; the mean loss of the held-out task's sentences goes from "
        f"{tuned['before']:.4f} to {tuned['after']:.4f}",
        f"- training: `compile --method senszoq --set loss=choices`, weights {plan['weights']}, {plan['steps']} steps "
        f"of {plan['batch']} sentences and {plan['queries']} queries, {plan['seq_len']} tokens or fewer, seed "
        f"{plan['seed']}; {plan['evaluated']} held-out sentences are evaluated",
    ]
    if phases:
        lines.append(
            f"- dynamic: {phases} masks, each of the model that the steps before have trained (`adapter export "
            f"--format hf`, {plan['sequences']} sequences), compiled anew, so that weights no longer chosen become "
            f"{plan['weights']} again; at the better rate of the static mask"
        )
    lines += [
        f"- {found['cpu']}, {found['cores']} cores, {found['system']}; load average "
        f"{' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        lines.append(f"- {warning}; coverage and accuracy do not depend on it")
    return lines


def _usual(result: Mapping[str, Any]) -> int:
    """The density that tables show where there is room for one: the paper's, or the nearest."""
    densities = result["densities"]
    return min(range(len(densities)), key=lambda number: abs(densities[number] - 1e-3))


def _missing(result: Mapping[str, Any]) -> str:
    """The runs of the plan that are not there, in words."""
    plan = result["conditions"]["plan"]
    wanted = [(mask, density, False) for density in plan["densities"] for mask in ORDER]
    wanted += [(mask, plan["densities"][0], True) for mask in DYNAMIC]
    runs = {
        (one["mask"], one["density"], one["dynamic"]): len(one["runs"]) for one in result["trained"]
    }
    lacking: dict[str, list[str]] = {}
    for mask, density, dynamic in wanted:
        all_runs = 1 if dynamic else len(plan["promises"])
        if runs.get((mask, density, dynamic), 0) < all_runs:
            name = _name({"mask": mask, "dynamic": dynamic})
            lacking.setdefault(f"{density:g}", []).append(name)
    return "; ".join(f"density {density}: {', '.join(names)}" for density, names in lacking.items())


def _name(one: Mapping[str, Any]) -> str:
    return f"{one['mask']} (dynamic)" if one["dynamic"] else str(one["mask"])


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.00995 else f"{100 * share:.2g}%"


def _shares(result: Mapping[str, Any]) -> dict[tuple[str, str, str], Sequence[float]]:
    return {(one["mask"], one["text"], one["time"]): one["shares"] for one in result["coverage"]}


def draw_coverage(path: Path, result: Mapping[str, Any]) -> None:
    """Draw coverage against density, a panel a text and time, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the place cannot be written.
    """
    figure = new_figure(path, 14, 6)
    grid = figure.subplots(len(TIMES), len(TEXTS), sharex=True, sharey=True)
    shares = _shares(result)
    for row, time in zip(grid, TIMES, strict=True):
        for axes, text in zip(row, TEXTS, strict=True):
            for mask, color in COLORS.items():
                anew = mask not in (*TEXTS, *ORDER)
                axes.loglog(
                    result["densities"],
                    shares[mask, text, time],
                    "--" if anew else "o-",
                    markersize=3,
                    label=mask,
                    color=color,
                )
            axes.set_title(f"{text}, {time} fine-tuning", fontsize="medium")
            axes.grid(alpha=0.3)
            if time == TIMES[-1]:
                axes.set_xlabel("density")
        row[0].set_ylabel("share of ||g||²")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right upper")
    save_png(figure, path)


def draw_curves(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the cumulative squares of layers, a panel a text, as a PNG file.

    Raises:
        ConfigError: as :func:`draw_coverage`.
    """
    figure = new_figure(path, 12, 3.2)
    grid = figure.subplots(1, len(TEXTS), sharey=True)
    for axes, text in zip(grid, TEXTS, strict=True):
        for one in result["curves"]:
            if one["text"] == text:
                low = [m - s for m, s in zip(one["mean"], one["std"], strict=True)]
                high = [m + s for m, s in zip(one["mean"], one["std"], strict=True)]
                (line,) = axes.semilogx(result["fractions"], one["mean"], label=one["time"])
                axes.fill_between(result["fractions"], low, high, alpha=0.2, color=line.get_color())
        axes.set_title(text, fontsize="medium")
        axes.set_xlabel("share of a layer's weights")
        axes.grid(alpha=0.3)
    grid[0].set_ylabel("cumulative share of ||g||²")
    grid[0].legend(title="fine-tuning", fontsize="small")
    save_png(figure, path)


def draw_overlap(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the overlaps as tables with colors, a panel a density, as a PNG file.

    Raises:
        ConfigError: as :func:`draw_coverage`.
    """
    names, densities = result["overlap"]["names"], result["densities"]
    figure = new_figure(path, 3.4 * len(densities) + 1, 4.4)
    grid = figure.subplots(1, len(densities), sharey=True, squeeze=False)[0]
    for axes, density, table in zip(grid, densities, result["overlap"]["shares"], strict=True):
        axes.imshow(table, vmin=0, vmax=1, cmap="Blues")
        for row, shares in enumerate(table):
            for column, share in enumerate(shares):
                color = "white" if share > 0.6 else "black"
                axes.text(
                    column, row, f"{share:.0%}", ha="center", va="center", color=color, fontsize=8
                )
        axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize="small")
        axes.set_yticks(range(len(names)), names, fontsize="small")
        axes.set_title(f"density {density:g}", fontsize="medium")
    save_png(figure, path)


def draw_accuracy(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the accuracy after training against density, static masks left, static and dynamic right, as a PNG file.

    Raises:
        ConfigError: as :func:`draw_coverage`.
    """
    figure = new_figure(path, 11, 4)
    left, right = figure.subplots(1, 2, sharey=True)
    points: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for one in result["trained"]:
        found = best(one["runs"])["accuracy"]
        if found is not None:
            points.setdefault((one["mask"], one["dynamic"]), []).append((one["density"], found))
    for (mask, dynamic), values in points.items():
        for axes in (left, right):
            wanted = not dynamic if axes is left else mask in (*DYNAMIC, "corpus")
            if wanted:
                axes.semilogx(
                    *zip(*sorted(values), strict=True),
                    "s--" if dynamic else "o-",
                    label=_name({"mask": mask, "dynamic": dynamic}),
                    color=COLORS[mask],
                    markerfacecolor="none" if dynamic else COLORS[mask],
                )
    untrained = [one["untrained"]["accuracy"] for one in result["trained"]]
    for axes, title in ((left, "static masks"), (right, "static and dynamic masks")):
        axes.axhspan(min(untrained), max(untrained), color="black", alpha=0.1, label="untrained")
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("density")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    left.set_ylabel("held-out accuracy, better rate")
    save_png(figure, path)
