"""``python -m research.accelerator.page FOLDER RESULTS PAGE``: tables of what ``run`` found.

Each comparison that has figures renews its marked part of the page; a copy of the figures is kept in ``--results``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.accelerator import folder
from research.accelerator.arms import COMPARISONS
from research.learning import page as learning
from research.support.command import add_places, exit_status
from research.support.page import marked, publish
from research.support.tables import RAW
from zoexport.core.errors import ConfigError
from zoexport.core.files import write_json
from zoexport.tools.bench.output import markdown_table

RESULTS = RAW / "accelerator"
_WORDS = {
    "films": "film sentences (samples.py), a choice of two words",
    "text": "news reports of the Brown corpus, every next token of rows of 256",
}


def mark_of(name: str) -> str:
    """What marks the part of a page that is about a comparison."""
    return f"report-accelerator-{name}"


def write(page: Path, results: Path, name: str, result: Mapping[str, Any]) -> None:
    """Renew the page's part about a comparison and its tables, and keep the raw runs in a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(results / f"{name}.json", result)
    lines = [learning.table(result), "", *learning.differences(result)]
    lines += ["", reached(result), "", *_conditions(name, result)]
    publish(page, mark_of(name), "\n".join(lines) + "\n", runs=learning.runs_table(result))


def reached(result: Mapping[str, Any]) -> str:
    """Operations until each arm's validation loss is what the first arm ends with.

    Of the first arm at its least and at its best rate; each arm at its best rate, and at the one that is there soonest.
    """
    first, *_ = result["arms"]
    header = ["loss to reach", "method", "rate", "TFLOP", "least..most", "of the first's"]
    rows: list[list[Any]] = []
    best = learning.best_rate(first)
    for rate in sorted({min(first["rates"]), best}):
        ends = [run["points"][-1]["loss"] for run in learning.runs_at(first, rate)]
        if None in ends:
            continue
        target = statistics.mean(ends)
        whole = (
            first["planned"]["flops"]
            * learning.runs_at(first, rate)[0]["points"][-1]["steps"]
            / 1e12
        )
        label = f"{target:.4f}: {first['label']} at {rate:g} after {whole:.0f} TFLOP"
        for arm in result["arms"][1:]:
            found = {one: learning.until(arm, one, target) for one in arm["rates"]}
            known = {one: value for one, value in found.items() if value}
            soonest = min(known, key=lambda one: statistics.mean(known[one]), default=None)
            for one in dict.fromkeys([learning.best_rate(arm), soonest]):
                if one is None:
                    continue
                row = [label, arm["label"], f"{one:g}"]
                if spent := found[one]:
                    mean = statistics.mean(spent)
                    row += [
                        f"{mean:.0f}",
                        f"{min(spent):.0f}..{max(spent):.0f}",
                        f"{mean / whole:.2f}",
                    ]
                else:
                    row += ["not by all seeds", None, None]
                rows.append(row)
    return markdown_table(header, rows)


def _conditions(name: str, result: Mapping[str, Any]) -> list[str]:
    comparison, device = COMPARISONS[name], result["device"]
    common = ", ".join(f"{key}={value}" for key, value in comparison.common.items())
    validated, tested = folder.VALIDATED[comparison.task], folder.TESTED[comparison.task]
    return [
        f"- {result['model']['name']}, {_WORDS[comparison.task]}: {validated}, on which no run trains, "
        f"choose the rate; held-out losses are of {tested} others",
        f"- weights as {result['model']['weights']}, of which int4 ones are made",
        *learning.ends(result),
        f"- all: {common}",
        *learning.settings(result),
        f"- {device['device']}, torch {device['torch']}, {device['date']}; TFLOP and GB as `zoexport plan` counts "
        "a step's",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="What runs on an accelerator found, as a page.")
    parser.add_argument("folder", type=Path, help="what prepare wrote")
    parser.add_argument("figures", type=Path, help="the folder of figures that run wrote")
    add_places(parser, RESULTS)
    chosen = parser.parse_args(arguments)

    def written() -> None:
        facts = folder.read_facts(chosen.folder)
        found = {name: chosen.figures / f"{name}.json" for name in COMPARISONS}
        there = {name: path for name, path in found.items() if path.exists()}
        if not there:
            raise ConfigError(
                f"folder {chosen.figures}",
                found="no figures",
                expected="those of python -m research.accelerator.run",
                fix="Check the path.",
            )
        for name in there:
            marked(chosen.page, mark_of(name))
        for name, path in there.items():
            write(
                chosen.page,
                chosen.results,
                name,
                {**json.loads(path.read_text(encoding="utf-8")), "model": facts["model"]},
            )

    return exit_status(lambda _: written())


if __name__ == "__main__":
    sys.exit(main())
