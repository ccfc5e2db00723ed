"""A measurement for people: lines for a terminal, a Markdown page, a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.figures import check_can_draw as _check_can_draw
from zoexport.core.figures import new_figure, save_png, table
from zoexport.tools.bench.matrix import first_order

JSON, MARKDOWN, PICTURE = "bench.json", "bench.md", "bench.png"
_HEADER = (
    "method",
    "weights",
    "seq",
    "q",
    "B",
    "layers",
    "labels",
    "s/step",
    "least..most",
    "program",
    "load s",
    "anon MB",
    "peak MB",
)

_RATIO_HEADER = ("ratio", "least..most", "of fastest", "what")
COLORS = {
    "eager": "tab:gray",
    "autograd": "tab:brown",
    "mezo": "tab:orange",
    "prge": "tab:blue",
    "mebp": "tab:green",
}
"""Colors by method; other methods share one."""


def check_can_draw(folder: Path) -> None:
    """Check before the measurement that the figure can be drawn.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    _check_can_draw(folder / PICTURE)


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the figures as lines for a terminal."""
    found = result["conditions"]
    shown = [
        f"{_model(found)} on {found['cpu']}, {found['threads']} of {found['cores']} cores, "
        f"{found['rounds']} rounds",
        "",
        table(_HEADER, [_row(entry) for entry in result["results"]]),
    ]
    if result["ratios"]:
        shown += ["", table(_RATIO_HEADER, _ratio_rows(result))]
    if warning := busy_warning(found):
        shown += ["", f"Warning: {warning}."]
    return shown


def markdown(result: Mapping[str, Any]) -> str:
    """Return the figures as a page, with the conditions under which they were measured."""
    found = result["conditions"]
    text = [
        markdown_table(_HEADER, [_row(entry) for entry in result["results"]]),
        "",
        "`program`: share of a step inside the bundle's programs (of a baseline: inside the model's passes).",
        "",
    ]
    if result["ratios"]:
        text += [markdown_table(_RATIO_HEADER, _ratio_rows(result)), ""]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    settings = ", ".join(f"{key}={value}" for key, value in found["settings"].items()) or "defaults"
    busy = " to ".join(map(str, found["load_average"]))
    text += [
        f"- {_model(found)}, {found['model']['parameters']:,} parameters; settings: {settings}",
        f"- {found['cpu']}, {found['threads']} threads on {found['cores']} cores, {found['system']}; "
        f"load average {busy}",
        f"- {versions}, Python {found['python']}; {found['date'][:10]}",
        f"- {found['rounds']} rounds that take turns, at most {found['steps_at_most']} steps each after "
        f"{found['warmup']} that do not count; medians of the rounds, and their extremes",
        f"- {found['workload']}",
        *(f"- {line}" for line in [*found["baselines"], found["memory"]]),
    ]
    if warning := busy_warning(found):
        text += [f"- **Preliminary**: {warning}"]
    return "\n".join(text) + "\n"


def _model(found: Mapping[str, Any]) -> str:
    """Return the model's name, or the name of its shape if its weights are random."""
    shape = found["random_weights"]
    return str(found["model"]["name"]) if shape is None else f"random weights of {shape}'s shape"


def busy_warning(found: Mapping[str, Any]) -> str | None:
    """Return a warning if the load average exceeds ``threads``, the measurement's own load."""
    loads = [load for load in found["load_average"] if load is not None]
    if not loads or max(loads) <= found["threads"] + 1:
        return None
    return f"a load average of {max(loads)} on {found['cores']} cores; times and ratios of a busy machine mean little"


def write(folder: Path, result: Mapping[str, Any]) -> None:
    """Write bench.json, bench.md and bench.png into a folder that exists."""
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / JSON).write_text(text + "\n", encoding="utf-8")
    draw(folder / PICTURE, result)
    (folder / MARKDOWN).write_text(
        f"# Benchmark\n\n![Seconds per step]({PICTURE})\n\n{markdown(result)}", encoding="utf-8"
    )


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Draw the time of a step as bars, variants of one amount of work together, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the place cannot be written.
    """
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for entry in result["results"]:
        work = f"seq {entry['max_length']}, q·B {entry['num_queries'] * entry['batch_size']}, labels {entry['labels']}"
        panels.setdefault(work, []).append(entry)
    heights = [len(entries) + 1.2 for entries in panels.values()]
    figure = new_figure(path, 8, 0.8 + 0.3 * sum(heights))
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for panel, (work, entries) in zip(axes, panels.items(), strict=True):
        names = [_bar_name(entry) for entry in entries]
        middle = [entry["step_seconds"] for entry in entries]
        spread = [
            [entry["step_seconds"] - entry["step_seconds_least"] for entry in entries],
            [entry["step_seconds_most"] - entry["step_seconds"] for entry in entries],
        ]
        colors = [COLORS.get(entry["method"], "tab:purple") for entry in entries]
        places = range(len(entries))
        panel.barh(places, middle, xerr=spread, color=colors, height=0.7)
        panel.set_yticks(places, names)
        panel.invert_yaxis()
        panel.set_title(work, fontsize="medium", loc="left")
        panel.grid(axis="x", alpha=0.3)
    axes[-1].set_xlabel("seconds a step (median of the rounds, least to most)")
    save_png(figure, path)


def method_of(entry: Mapping[str, Any]) -> str:
    """Return the method, with its setting ``activation_cache_mb`` if that changes what is run."""
    if entry["activation_cache_mb"] is not None:
        return f"{entry['method']}, activation_cache_mb {entry['activation_cache_mb']}"
    return str(entry["method"])


def _bar_name(entry: Mapping[str, Any]) -> str:
    name = f"{method_of(entry)} {entry['weights']}"
    name = name if first_order(entry["method"]) else f"{name}, q {entry['num_queries']}"
    return name if entry["layers"] == "all" else f"{name}, {entry['layers']}"


def _row(entry: Mapping[str, Any]) -> list[Any]:
    # The session's own work and the baseline's perturbation are what is outside programs.
    outside = ("session", "perturb", "update")
    programs = sum(share for part, share in entry["share_by_part"].items() if part not in outside)
    return [
        method_of(entry),
        f"{entry['weights']}/{entry['activations']}",
        entry["max_length"],
        None if first_order(entry["method"]) else entry["num_queries"],
        entry["batch_size"],
        entry["layers"]
        if entry["targets"] == "attention"
        else f"{entry['layers']}, {entry['targets']}",
        entry["labels"],
        entry["step_seconds"],
        f"{entry['step_seconds_least']:.4g}..{entry['step_seconds_most']:.4g}",
        f"{programs:.1%}",
        entry["load_seconds"],
        entry["peak_anonymous_mb"],
        entry["peak_rss_mb"],
    ]


def _ratio_rows(result: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for ratio in result["ratios"]:
        of = (
            ratio["of"]
            if isinstance(ratio["of"], str)
            else f"{ratio['of'][0]} ... {ratio['of'][-1]}"
        )
        least = ratio["ratio_least"]
        spread = "-" if least is None else f"{least:.4g}..{ratio['ratio_most']:.4g}"
        rows.append([ratio["ratio"], spread, ratio["ratio_of_fastest"], f"{ratio['kind']}: {of}"])
    return rows


def markdown_table(header: Sequence[str], rows: list[list[Any]]) -> str:
    """Cells as a Markdown table; floats with four significant digits, None as a dash."""

    def cell(value: object) -> str:
        return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    made = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(cell, row)) + " |" for row in made)
