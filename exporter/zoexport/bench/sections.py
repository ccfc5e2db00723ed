"""What a measurement of split bundles has beside the steps: programs, products, unpacking; tables and a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.bench import shaders
from zoexport.bench.kernel_process import OURS
from zoexport.bench.kernels import OTHERS
from zoexport.bench.matrix import first_order
from zoexport.report import new_figure, save_png

PICTURE = "split.png"
COLORS = {
    "eager": "tab:gray",
    "autograd": "tab:brown",
    "mezo": "tab:orange",
    "prge": "tab:blue",
    "mebp": "tab:green",
}
"""By method; others share one (:func:`color_of`)."""
_USUAL_LENGTH = 256
"""The length whose programs are drawn, where it was measured."""


@dataclasses.dataclass(frozen=True)
class Section:
    """A table with its title and what its columns are."""

    title: str
    note: str
    header: Sequence[str]
    rows: list[list[Any]]


def color_of(method: str) -> str:
    """A method's color in every picture."""
    return COLORS.get(method, "tab:purple")


def sections(result: Mapping[str, Any]) -> list[Section]:
    """Those that have rows."""
    made = (_programs(result), _shaders(result), _unpacking(result), _kernels(result))
    return [section for section in made if section.rows]


def _programs(result: Mapping[str, Any]) -> Section:
    rows = []
    for entry in result["results"]:
        for program in entry["programs"]:
            rows.append(
                [
                    entry["method"],
                    entry["seq_len"],
                    program["name"],
                    program["calls"],
                    round(program["call_seconds"] * 1e3, 3),
                    f"{program['seconds'] / entry['step_seconds']:.1%}",
                    program["planned_mb"],
                    program["gflop"],
                    round(program["gflop"] / program["call_seconds"], 1)
                    if program["call_seconds"]
                    else None,
                ]
            )
    note = (
        "Time of a call, loading left out; share: of a step. planned MB: values between a program's operators, which "
        "is one reservation for all programs, as large as the largest needs. GFLOP: the matrix products of a call."
    )
    header = ("method", "seq", "program", "calls", "ms/call", "share", "planned MB", "GFLOP")
    return Section("Programs", note, (*header, "GFLOP/s"), rows)


def _shaders(result: Mapping[str, Any]) -> Section:
    rows = [
        [
            entry["method"],
            entry["seq_len"],
            kind["name"],
            kind["dispatches"],
            kind["seconds"],
            None if kind["share"] is None else f"{kind['share']:.1%}",
            kind["gflop"],
            kind["gb"],
            kind["gflop_s"],
            kind["gb_s"],
        ]
        for entry in result["results"]
        for kind in entry["shaders"]
    ]
    header = ("method", "seq", "shader", "dispatches", "s/step", "share", "GFLOP", "GB")
    return Section("Shaders", shaders.NOTE, (*header, "GFLOP/s", "GB/s"), rows)


def _unpacking(result: Mapping[str, Any]) -> Section:
    rows = [
        [
            entry["name"],
            *(
                f"{entry[part]['share']:.1%}" if entry[part] else None
                for part in ("forward", "backward", "step")
            ),
            entry["step"]["seconds"],
        ]
        for entry in result["unpacking"]
    ]
    note = (
        "What products with packed weights take longer than the same kernel's products of fp32 numbers, as a share of "
        "the forward programs, the backward programs and the step. Below zero: reading fp32 weights costs more."
    )
    return Section("Unpacking weights", note, ("of", "forward", "backward", "step", "s/step"), rows)


def _kernels(result: Mapping[str, Any]) -> Section:
    rows = []
    for entry in result["kernels"]:
        times = entry["implementations"]
        row: list[Any] = [entry["name"]]
        for name in (OURS, *OTHERS):
            row.append(round(times[name]["seconds"] * 1e3, 3) if name in times else None)
        for name in OTHERS:
            ratio = entry["ratios"].get(name)
            row.append(f"{ratio['ratio']:.3g} ({ratio['ratio_of_fastest']:.3g})" if ratio else None)
        rows.append(row)
    note = (
        "Milliseconds of a call; rows x depth x columns. over ...: the time of the quantized product over the other's, "
        "median of the rounds, and of the fastest calls in brackets; less is better."
    )
    header = ("product", *(f"{name} ms" for name in (OURS, *OTHERS)))
    return Section("Products", note, (*header, *(f"over {name}" for name in OTHERS)), rows)


def method_of(entry: Mapping[str, Any]) -> str:
    """The method; with its settings ``split`` and ``keep_mb`` where these change what is run."""
    kept = entry["keep_mb"]
    if kept is not None:
        return f"{entry['method']}, keep_mb {kept}"
    plain = entry["split"] == "whole" or first_order(entry["method"])
    return str(entry["method"]) if plain else f"{entry['method']} by {entry['split']}"


def draw(path: Path, result: Mapping[str, Any]) -> bool:
    """Draw time and memory by length, and time and memory of the programs, as a PNG file.

    Returns:
        Whether there was something to draw: a split bundle.

    Raises:
        ConfigError: matplotlib is not installed, or the place cannot be written.
    """
    split = [entry for entry in result["results"] if entry["programs"]]
    if not split:
        return False
    shown = _shown(split)
    figure = new_figure(path, 11, 4.2 + 0.28 * sum(len(entry["programs"]) + 1 for entry in shown))
    bars = max(2.0, 0.28 * sum(len(entry["programs"]) + 1 for entry in shown))
    axes = figure.subplots(2, 2, height_ratios=[3.2, bars])
    _by_length(axes[0][0], result, "step_seconds", "seconds a step")
    _by_length(axes[0][1], result, "peak_anonymous_mb", "anonymous memory, MB")
    _by_program(axes[1][0], shown, lambda one: one["call_seconds"] * 1e3, "ms a call")
    _by_program(axes[1][1], shown, lambda one: one["planned_mb"], "planned memory, MB")
    save_png(figure, path)
    return True


def _shown(split: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The variants of one length whose programs are drawn, one a method and its settings."""
    lengths = sorted({entry["seq_len"] for entry in split}, key=lambda n: abs(n - _USUAL_LENGTH))
    of_length = [entry for entry in split if entry["seq_len"] == lengths[0]]
    return list({method_of(entry): entry for entry in reversed(of_length)}.values())


def _by_length(axes: Any, result: Mapping[str, Any], key: str, label: str) -> None:
    lines: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for entry in result["results"]:
        if entry[key] is not None:
            style = "o--" if entry.get("keep_mb") else "o-"
            line = entry["method"], style, f"{method_of(entry)} {entry['weights']}"
            lines.setdefault(line, []).append((entry["seq_len"], entry[key]))
    for (method, style, name), points in lines.items():
        color = color_of(method)
        axes.plot(*zip(*sorted(points), strict=True), style, label=name, color=color)
    axes.set_xlabel("tokens a row")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


def _by_program(
    axes: Any,
    shown: Sequence[Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float],
    label: str,
) -> None:
    bars = [
        (f"{entry['method']}: {program['name']}", value(program), color_of(entry["method"]))
        for entry in shown
        for program in entry["programs"]
    ]
    names, values, colors = zip(*bars, strict=True)
    axes.barh(range(len(bars)), values, color=colors, height=0.7)
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
