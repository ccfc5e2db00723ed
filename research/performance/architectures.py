"""``make bench-architectures``: steps of models of newer architectures, with random weights.

``python -m research.performance.architectures PAGE`` runs ``zoexport bench --shape NAME --grid mebp
--max-length 256 --set lora.r=8`` for each model that ``--results`` has no figures of, and puts the
table between the page's lines ``<!-- bench-architectures -->``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.performance.models import (
    conditions,
    found,
    is_there,
    measure_shape,
    variants_of,
    whole,
)
from research.support.command import Clock, Measured, renew_measured
from research.support.tables import RAW
from zoexport.tools.bench.matrix import AUTOGRAD
from zoexport.tools.bench.output import markdown_table
from zoexport.tools.bench.rounds import Plan

MARK = "bench-architectures"
RESULTS = RAW / "performance" / "architectures"
IN_PYTORCH = {
    "gemma3-270m": True,
    "lfm2-350m": True,
    "granite-4.0-h-350m": True,
    "qwen3.5-0.8b": True,
    "gemma-3n-e2b": False,
}
"""The models, and whether PyTorch's step over fp32 weights fits into 24 GB."""
COLUMNS = {
    ("mebp", 0): "mebp",
    ("mebp", 2000): "saved",
    ("mezo", None): "mezo",
    (AUTOGRAD, None): "PyTorch",
}


def measure(name: str, results: Path, plan: Plan, work: Path | None, clock: Clock) -> None:
    """Measure one model into a folder of ``results``."""
    measure_shape(name, results / name, plan, work, clock, {"eager": IN_PYTORCH[name]})


def text(folder: Path) -> str:
    """Return the page's part, from all figures in ``folder``."""
    results = found(folder, IN_PYTORCH)
    header = ["model", "weights MB", *(f"s, {name}" for name in COLUMNS.values())]
    header += [*(f"anonymous MB, {name}" for name in COLUMNS.values())]
    header += ["compiling: CPU s", "MB"]
    rows = [_row(name, result) for name, result in results.items()]
    return f"{markdown_table(header, rows)}\n\n{conditions(results)}"


def _row(name: str, result: Mapping[str, Any]) -> list[Any]:
    of = variants_of(result)
    entries = [of.get(column) for column in COLUMNS]
    took = of["mebp", 0]["compiling"] or {}
    return [
        name,
        whole(of["mebp", 0]["bundle_bytes"] / 1e6),
        *(entry and f"{entry['step_seconds']:.2f}" for entry in entries),
        *(entry and whole(entry["peak_anonymous_mb"]) for entry in entries),
        whole(took.get("processor_seconds")),
        whole(took.get("peak_anonymous_mb")),
    ]


REPORT = Measured(MARK, RESULTS, "model", IN_PYTORCH, is_there, measure, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_measured(arguments, __doc__.partition("\n")[0], REPORT, steps=4)


if __name__ == "__main__":
    sys.exit(main())
