"""The report on masks for people: tables in a page's marked part, and the raw runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.masks.gradients import TEXTS, TIMES
from research.masks.training import DYNAMIC, ORDER
from research.support.page import publish
from zoexport.core.files import write_json
from zoexport.tools.bench.output import busy_warning, markdown_table

MARK = "report-masks"
SHOWN = ("task, chosen anew", "task", "corpus", "grasp", "smallest", "largest", "random")
"""Masks in the order of tables."""

_COVERAGE = """**Coverage.** The share of a text's squared gradient norm that lies in a mask, before and after
fine-tuning (figure 3). `corpus` and `task` are the sensitive masks of these texts; all masks are chosen before
fine-tuning, but for `task, chosen anew` (the paper's "dyn."), which is chosen at the time that is looked at. Held-out
texts choose nothing.
"""
_CURVES = """**Cumulative squares.** How much of a layer's squared gradient norm lies in such a share of its elements,
the largest ones: mean and standard deviation over {layers} linear weights (figure 2), before fine-tuning.
"""
_OVERLAP = """**Overlap.** The share of the places that the largest squares of one text have in common with another's
(figures 12 and 13), with density {density:g}.
"""
_ACCURACY = """**Accuracy after training** (figure 6a), and with masks that are chosen anew during it (`dynamic`,
figure 6b). The rate is {promises} over the share of the task's squared norm that the mask covers. `untrained` is
the bundle as compiled: the chosen weights are fp16 already then.
"""


def write(page: Path, folder: Path, result: Mapping[str, Any]) -> None:
    """Renew the page's marked part and its tables, and write the raw runs to a folder.

    Raises:
        ConfigError: the place cannot be written.
    """
    write_json(folder / "masks.json", result)
    publish(page, MARK, markdown(result))


def markdown(result: Mapping[str, Any]) -> str:
    """The marked part."""
    density = _usual(result)
    found = result["conditions"]
    promises = " or ".join(f"{each:g}" for each in found["plan"]["promises"])
    parts = [_COVERAGE, coverage(result), "", _CURVES.format(layers=result["layers"])]
    parts += [curves(result), ""]
    parts += [_OVERLAP.format(density=result["densities"][density])]
    parts += [overlap(result, density), "", _ACCURACY.format(promises=promises)]
    if result["trained"]:
        parts += [accuracy(result), ""]
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
        for mask in SHOWN
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
        f"{sizes['grasp_sequences']} rows for grasp; {sizes['max_length']} tokens or fewer, seed {sizes['seed']}, fp32",
        f"- fine-tuning: all weights, {sizes['tuning_steps']} steps of Adam, {sizes['tuning_batch']} sentences each, "
        f"rate {sizes['tuning_rate']:g} falling to 0; the mean loss of the held-out task's sentences goes from "
        f"{tuned['before']:.4f} to {tuned['after']:.4f}",
        f"- training: `compile --method senszoq --set loss=choices`, weights {plan['weights']}, {plan['steps']} steps "
        f"of {plan['batch_size']} sentences and {plan['num_queries']} queries, {plan['max_length']} tokens or fewer, "
        f"seed {plan['seed']}; {plan['evaluated']} held-out sentences are evaluated",
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
