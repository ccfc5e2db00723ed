"""Methods x targets: what of them runs, as a target's features and a method's needs say, and what generates text.

    python -m tests.support.matrix

writes the tables into docs/targets.md and docs/results/generation.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core.config import parse
from zoexport.core.features import Feature
from zoexport.core.target import Target, missing, unmet
from zoexport.methods import methods
from zoexport.targets import targets
from zoexport.trained import needs_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE, GENERATING = DOCS / "targets.md", DOCS / "results" / "generation.md"
BEGIN, END = "<!-- methods x targets -->\n", "\n<!-- end -->"

METHODS: dict[str, tuple[dict[str, str], ...]] = {
    "mebp": ({},),
    "prge": ({}, {"granularity": "layer"}, {"granularity": "layer", "optimizer": "adam"}),
    "mezo": ({}, {"granularity": "layer"}, {"train": "full"}),
    "fzoo": ({}, {"granularity": "layer"}, {"granularity": "layer", "optimizer": "muon"}),
    "spzo": ({}, {"train": "full"}),
    "senszoq": ({},),
    "quzo": ({}, {"train": "lora"}),
}
"""Their forms: settings that ask a target for something else."""

TARGETS = ("host", "android-cpu", "android-npu", "android-gpu", "ios-mlx", "ios-coreml")

CELLS = [
    (method, target, form)
    for method, forms in METHODS.items()
    for form in forms
    for target in TARGETS
]


def problem_of(method: str, target: str, settings: dict[str, str]) -> str | None:
    """Why a target cannot run a method, whatever is installed; None where it can."""
    config, chosen = _cell(method, target, settings)
    everywhere = [targets.get(name) for name in targets.names()]
    problems = unmet(config, needs_of(config), chosen, everywhere)
    return "; ".join(problem.reason for problem in problems) or None


def generates(method: str, target: str, settings: dict[str, str]) -> bool:
    """Whether bundles of a method that a target runs have programs that generate."""
    return bool(_cell(method, target, settings)[1].generating_lengths)


def _cell(method: str, target: str, settings: dict[str, str]) -> tuple[Any, Target]:
    config = parse(methods.get(method).config, settings)
    chosen = targets.get(target)
    return chosen.defaults(config), chosen


def table() -> str:
    """The table in Markdown."""
    lines = [f"| | {' | '.join(TARGETS)} |", "| --- " * (len(TARGETS) + 1) + "|"]
    notes: dict[Feature, int] = {}
    for method, forms in METHODS.items():
        for form in forms:
            cells = []
            for target in TARGETS:
                config, chosen = _cell(method, target, form)
                lacking = missing(needs_of(config), chosen)
                numbers = [notes.setdefault(feature, len(notes) + 1) for feature in lacking]
                cells.append(" ".join(f"no ({n})" for n in sorted(numbers)) or "yes")
            name = f"`{method}`" + "".join(f" `{key}={value}`" for key, value in form.items())
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    lines += [f"{n}. The target has no {feature.value}." for feature, n in notes.items()]
    return "\n".join(lines)


def generating_table() -> str:
    """The table of what generates, in Markdown."""
    lines = [f"| | {' | '.join(TARGETS)} |", "| --- " * (len(TARGETS) + 1) + "|"]
    for method, forms in METHODS.items():
        for form in forms:
            cells = []
            for target in TARGETS:
                runs = problem_of(method, target, form) is None
                known = runs and generates(method, target, form)
                cells.append("yes" if known else "no" if runs else "")
            name = f"`{method}`" + "".join(f" `{key}={value}`" for key, value in form.items())
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Renew the pages."""
    for path, made in ((PAGE, table()), (GENERATING, generating_table())):
        page = path.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        path.write_text(before + BEGIN + made + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
