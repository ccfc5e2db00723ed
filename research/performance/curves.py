"""``make bench-curves``: what a step costs in time and memory, against tokens, layers, rank and queries.

``python -m research.performance.curves PAGE`` measures each curve that ``--results`` has no figures of, by ``zoexport
bench``, and puts a table of each between the page's lines ``<!-- bench-curves -->``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.support.command import Clock, Measured, renew_measured
from research.support.tables import RAW
from zoexport.core.files import write_json
from zoexport.tools.bench.output import busy_warning, markdown_table, method_of
from zoexport.tools.bench.rounds import Plan
from zoexport.tools.bench.run import bench

MARK = "bench-curves"
RESULTS = RAW / "performance" / "curves"
MODEL = "smollm2-135m"
_FIGURES = ("step_seconds", "peak_anonymous_mb")
_SPLIT = {"methods": ("mebp", "mezo"), "targets": ("all-linear",)}
_SAME = {"weights": ("int4",), "labels": ("all",), "eager": False}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One table.

    Attributes:
        about: what varies, and what does not.
        axis: the key of ``bench --json``'s results that varies; None: the setting ``lora.r``.
        values: of ``axis``, in the order of the table.
        changes: of the matrix of variants, beside that axis.
    """

    about: str
    axis: str | None
    values: tuple[Any, ...]
    changes: Mapping[str, Any]


CURVES = {
    "tokens": Curve(
        "tokens of a row, LoRA of rank 16 on all linear layers",
        "max_length",
        (64, 128, 256, 512, 1024),
        _SPLIT,
    ),
    "layers": Curve(
        "layers with adapters, the last ones, of 30; 256 tokens",
        "layers",
        ("last:1", "last:8", "last:15", "all"),
        {**_SPLIT, "max_length": (256,)},
    ),
    "rank": Curve(
        "rank of adapters on all linear layers; 256 tokens",
        None,
        (2, 8, 32, 128),
        {**_SPLIT, "max_length": (256,)},
    ),
    "queries": Curve(
        "queries of a step over one row of 64 tokens, programs of the whole model",
        "num_queries",
        (1, 2, 4, 8),
        {"methods": ("prge", "mezo"), "max_length": (64,)},
    ),
}


def measure(name: str, results: Path, plan: Plan, work: Path | None, clock: Clock) -> None:
    """Write lines by method, each a list of points (``at`` and the figures), and the conditions.

    Raises:
        ZoExportError: something cannot be compiled or run.
    """
    curve = CURVES[name]
    runs = [{}] if curve.axis else [{"lora.r": str(rank)} for rank in curve.values]
    axis = {curve.axis: curve.values} if curve.axis else {}
    lines: dict[str, list[dict[str, Any]]] = {}
    conditions = []
    for settings in runs:
        result = bench(
            [MODEL],
            name="quick",
            changes={**_SAME, **curve.changes, **axis},
            target="host",
            settings=settings,
            threads=None,
            plan=plan,
            work=work,
            folder=None,
            force=False,
            progress=clock,
        )
        conditions.append(result["conditions"])
        for entry in result["results"]:
            at = entry[curve.axis] if curve.axis else int(settings["lora.r"])
            figures = {key: entry[key] for key in entry if key.startswith(_FIGURES)}
            lines.setdefault(method_of(entry), []).append({"at": at, **figures})
    results.mkdir(parents=True, exist_ok=True)
    write_json(_file(results, name), {"lines": lines, "conditions": conditions})


def table(name: str, curve: Curve, result: Mapping[str, Any]) -> str:
    """Return a title and a table: a row for each method and value, with time and memory."""
    rows = [
        [
            method,
            point["at"],
            point["step_seconds"],
            f"{point['step_seconds_least']:.4g}..{point['step_seconds_most']:.4g}",
            point["peak_anonymous_mb"],
        ]
        for method, points in result["lines"].items()
        for point in sorted(points, key=lambda point: curve.values.index(point["at"]))
    ]
    header = ["method", name, "s/step", "least..most", "anon MB"]
    return f"Against {curve.about}:\n\n{markdown_table(header, rows)}"


def text(folder: Path) -> str:
    """Return the page's part, from all curves in ``folder``."""
    parts, said = [], set()
    for name, curve in CURVES.items():
        file = _file(folder, name)
        if not file.is_file():
            continue
        result = json.loads(file.read_text(encoding="utf-8"))
        parts.append(table(name, curve, result))
        for found in result["conditions"]:
            warning = busy_warning(found)
            busy = f"; **preliminary**: {warning}" if warning else ""
            said.add(
                f"- {found['model']['name']}, int4, one row, every token predicted; {found['cpu']}, "
                f"{found['threads']} threads, {found['rounds']} rounds, {found['date'][:10]}{busy}"
            )
    return "\n\n".join([*parts, "\n".join(sorted(said))]) if parts else "Not measured yet."


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


REPORT = Measured(
    MARK,
    RESULTS,
    "curve",
    CURVES,
    lambda folder, name: _file(folder, name).is_file(),
    measure,
    text,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_measured(arguments, __doc__.partition("\n")[0], REPORT, steps=6)


if __name__ == "__main__":
    sys.exit(main())
