"""``make bench-models``: measure the five models of MeBP's Table 1 with random weights.

``python -m research.performance.models PAGE`` measures each model that ``--results`` has no figures of, and puts two
tables between the page's lines ``<!-- bench-models -->``: the paper's figures (an iPhone 15 Pro Max) beside ours, and
PyTorch's. Rows of 256 tokens, LoRA of rank 8 on all linear layers, which gives the paper's numbers of trained weights.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.support.command import Clock, Measured, renew_measured
from research.support.tables import RAW
from zoexport.tools.bench import output
from zoexport.tools.bench.matrix import AUTOGRAD
from zoexport.tools.bench.output import markdown_table
from zoexport.tools.bench.rounds import Plan
from zoexport.tools.bench.run import bench

MARK = "bench-models"
RESULTS = RAW / "performance" / "models"
SEQ_LEN = 256
SETTINGS = {"lora.r": "8"}
ALL_LAYERS_MB = 20000
"""Of ``activation_cache_mb``: more than the results of all layers."""


@dataclasses.dataclass(frozen=True)
class Published:
    """A row of MeBP's Table 1: seconds of a step and peak MB, of MeZO and of MeBP.

    Attributes:
        in_pytorch: whether PyTorch's step over fp32 weights fits into 24 GB.
    """

    trained: str
    seconds: tuple[float, float]
    mb: tuple[float, float]
    in_pytorch: bool = False


MODELS = {
    "qwen2.5-0.5b": Published("4.39M", (2.68, 3.85), (318.93, 320.17), in_pytorch=True),
    "qwen2.5-1.5b": Published("9.23M", (5.47, 9.09), (451.57, 460.24), in_pytorch=True),
    "qwen2.5-3b": Published("14.97M", (10.28, 17.96), (554.10, 661.78)),
    "gemma3-1b": Published("6.52M", (4.88, 9.48), (563.64, 569.00)),
    "gemma3-4b": Published("14.90M", (16.86, 28.58), (961.54, 1029.49)),
}


def measure(name: str, results: Path, plan: Plan, work: Path | None, clock: Clock) -> None:
    """Measure one model into a folder of ``results``; a run that was stopped goes on.

    Raises:
        ZoExportError: something cannot be compiled or run.
    """
    in_pytorch = MODELS[name].in_pytorch
    keep = (0, ALL_LAYERS_MB) if in_pytorch else (0,)
    changes = {"activation_cache_mb": keep, "eager": in_pytorch}
    measure_shape(name, results / name, plan, work, clock, changes)


def measure_shape(
    name: str,
    folder: Path,
    plan: Plan,
    work: Path | None,
    clock: Clock,
    changes: Mapping[str, Any],
) -> None:
    """Measure a shape with the grid ``mebp``, sequences of 256 tokens and adapters of rank 8.

    Args:
        changes: axes of the grid, by field of ``matrix.Axes``.

    Raises:
        ZoExportError: something cannot be compiled or run.
    """
    bench(
        [f"shape:{name}"],
        name="mebp",
        changes={"max_length": (SEQ_LEN,), **changes},
        target="host",
        settings=SETTINGS,
        threads=None,
        plan=plan,
        work=work,
        folder=folder,
        force=True,
        progress=clock,
    )


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of the measured models and the paper's figures."""
    header = ["model", "trained", "theirs: s, MeZO", "MeBP", "MB, MeZO", "MeBP", "over MeZO"]
    header += ["ours: s, MeZO", "MeBP", "over MeZO", "anonymous MB, MeZO", "MeBP", "weights MB"]
    header += ["compiling: CPU s", "MB"]
    rows: list[list[Any]] = []
    for name, published in MODELS.items():
        if name not in results:
            continue
        of = variants_of(results[name])
        mebp, mezo = of["mebp", 0], of["mezo", None]
        took = mebp["compiling"] or {}
        rows.append(
            [
                name,
                published.trained,
                *map(str, published.seconds),
                *(f"{mb:.0f}" for mb in published.mb),
                f"{published.seconds[1] / published.seconds[0]:.2f}",
                f"{mezo['step_seconds']:.2f}",
                f"{mebp['step_seconds']:.2f}",
                f"{_ratio(results[name], mebp, 'step over mezo'):.2f}",
                *(f"{entry['peak_anonymous_mb']:.0f}" for entry in (mezo, mebp)),
                f"{mebp['bundle_bytes'] / 1e6:.0f}",
                whole(took.get("processor_seconds")),
                whole(took.get("peak_anonymous_mb")),
            ]
        )
    return markdown_table(header, rows)


def beside_pytorch(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The models that PyTorch has room for: time and memory of LoRA with everything in memory."""
    header = ["model", "PyTorch: s", "anonymous MB", "ours, results kept: s", "of its time"]
    header += ["anonymous MB", "of its memory", "results not kept: s", "of its time"]
    rows: list[list[Any]] = []
    for name, result in results.items():
        of = variants_of(result)
        if (AUTOGRAD, None) not in of:
            continue
        theirs, kept, again = of[AUTOGRAD, None], of["mebp", ALL_LAYERS_MB], of["mebp", 0]
        rows.append(
            [
                name,
                f"{theirs['step_seconds']:.2f}",
                f"{theirs['peak_anonymous_mb']:.0f}",
                f"{kept['step_seconds']:.2f}",
                f"{_ratio(result, kept, 'step over autograd'):.2f}",
                f"{kept['peak_anonymous_mb']:.0f}",
                f"1/{theirs['peak_anonymous_mb'] / kept['peak_anonymous_mb']:.0f}",
                f"{again['step_seconds']:.2f}",
                f"{_ratio(result, again, 'step over autograd'):.2f}",
            ]
        )
    return markdown_table(header, rows) if rows else ""


def variants_of(result: Mapping[str, Any]) -> dict[tuple[str, int | None], dict[str, Any]]:
    """Return the entries of a result by method and ``activation_cache_mb``."""
    return {(entry["method"], entry["activation_cache_mb"]): entry for entry in result["results"]}


def whole(value: float | None) -> str | None:
    """Return a number without decimals; None stays None."""
    return None if value is None else f"{value:.0f}"


def _ratio(result: Mapping[str, Any], entry: Mapping[str, Any], kind: str) -> float:
    found = [ratio for ratio in result["ratios"] if ratio["kind"] == kind]
    (ratio,) = (ratio for ratio in found if ratio["of"] == entry["name"])
    return float(ratio["ratio"])


def found(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the results of those shapes that a folder has figures of."""
    return {
        name: json.loads((folder / name / output.JSON).read_text(encoding="utf-8"))
        for name in names
        if is_there(folder, name)
    }


def conditions(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a list item for each result: its machine, load and rounds."""
    said = []
    for name, result in results.items():
        of = result["conditions"]
        said.append(
            f"- {name}: {of['cpu']}, {of['threads']} threads, load average "
            f"{min(of['load_average']):.1f} to {max(of['load_average']):.1f}, {of['rounds']} rounds, "
            f"{of['date'][:10]}"
        )
    return "\n".join(said)


def text(folder: Path) -> str:
    """Return the page's part, from all figures in ``folder``."""
    results = found(folder, MODELS)
    parts = [table(results), beside_pytorch(results), conditions(results)]
    return "\n\n".join(filter(None, parts))


def is_there(folder: Path, name: str) -> bool:
    """Return whether a folder has the figures of a shape."""
    return (folder / name / output.JSON).is_file()


REPORT = Measured(MARK, RESULTS, "model", MODELS, is_there, measure, text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_measured(arguments, __doc__.partition("\n")[0], REPORT, steps=4)


if __name__ == "__main__":
    sys.exit(main())
