"""Measured steps compared with the peak of the machine's cores, and with a goal.

``python -m research.performance.roofline PAGE FOLDER`` takes what ``zoexport bench -o FOLDER`` measured here, and
measures the cores' peaks by ``build/bench_peak``. For ``--grid mebp`` it puts a table of steps between the page's lines
``<!-- bench-roofline -->``. Otherwise it puts a table between ``<!-- bench-roofline-prge -->``: steps of P-RGE with
labels everywhere beside PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.performance.kernels import programs
from research.performance.page import measured
from research.support.command import Clock, exit_status
from research.support.page import marked, publish
from zoexport.core.errors import ConfigError
from zoexport.core.progress import Progress
from zoexport.tools.bench import bundles
from zoexport.tools.bench.matrix import AUTOGRAD, EAGER, Variant, measured_variant
from zoexport.tools.bench.output import markdown_table
from zoexport.tools.plan import plan_training

MARK = "bench-roofline"
PRGE_MARK = "bench-roofline-prge"
PEAK = Path(__file__).parents[2] / "build" / "bench_peak"
GOALS = {128: 0.80}
"""Of the time of PyTorch's step, by tokens."""
USUAL_GOAL = 0.85
PRGE_GOALS = {"int4": 5.0, "fp32": 2.4}
"""Times as fast as PyTorch, by weights."""


def measured_peak(program: Path, threads: int) -> dict[str, Any]:
    """What so many threads do together: ``gflops`` of multiply-adds in registers, and ``gb_s`` of reads from memory.

    With ``byte_gops``, the operations of multiply-adds of bytes, where the program knows the fastest instruction.

    Raises:
        ConfigError: the program is not built, or knows none of this processor's instructions.
    """
    try:
        ended = subprocess.run([program, str(threads)], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            f"program {program}",
            found=str(error),
            expected="the peaks of this machine",
            fix="Build it: cmake --build build --target bench_peak.",
        ) from error
    peak: dict[str, Any] = json.loads(ended.stdout)
    return peak


def steps_table(
    result: Mapping[str, Any], folder: Path, peak: Mapping[str, Any], progress: Progress
) -> str:
    """Return a row for each step of ``mebp``: its operations, its time at the peak and as measured, and the goal's.

    Args:
        result: a measurement.
        folder: the folder of its bundles.
        peak: the peaks of this machine.
        progress: called before bundles are read.

    Raises:
        BundleError: a bundle that was measured is missing.
    """
    progress("reading bundles", None)
    theirs = {
        entry["max_length"]: entry["step_seconds"]
        for entry in result["results"]
        if entry["method"] == AUTOGRAD
    }
    over = {
        ratio["of"]: ratio["ratio"]
        for ratio in result["ratios"]
        if ratio["kind"] == f"step over {AUTOGRAD}"
    }
    rows = []
    for entry in _steps(result):
        tokens = entry["max_length"]
        if tokens not in theirs:
            continue
        gflop = sum(program.gflop * program.calls for program in programs(entry, folder))
        least, goal = gflop / peak["gflops"], GOALS.get(tokens, USUAL_GOAL)
        asked = goal * theirs[tokens]
        rows.append(
            [
                tokens,
                entry["activation_cache_mb"],
                round(gflop, 1),
                least,
                entry["step_seconds"],
                f"{least / entry['step_seconds']:.0%}",
                theirs[tokens],
                over[entry["name"]],
                f"{goal:.2f}",
                f"{least / asked:.0%}",
            ]
        )
    header = [
        "tokens",
        "activation_cache_mb",
        "GFLOP",
        "s at the peak",
        "s/step",
        "of the peak",
        "PyTorch s/step",
    ]
    return markdown_table([*header, "over PyTorch", "goal", "of the peak that it asks"], rows)


def prge_table(
    result: Mapping[str, Any], peak: Mapping[str, Any], planned: Callable[[Variant], int]
) -> str:
    """A row for each step of ``prge`` beside PyTorch's with labels everywhere, of weights whose peak is known.

    Of the fastest steps, as a peak is the best of some.

    Args:
        planned: the operations of a variant's step.
    """
    theirs = {
        entry["name"]: entry["step_seconds_fastest"]
        for entry in result["results"]
        if entry["method"] == EAGER
    }
    faster = {
        ratio["of"]: ratio
        for ratio in result["ratios"]
        if ratio["kind"] == f"faster than {EAGER}" and ratio["to"] in theirs
    }
    peaks = {"fp32": peak["gflops"], "int8": peak.get("byte_gops")}
    rows = []
    for entry in result["results"]:
        if entry["method"] != "prge" or entry["labels"] != "all" or entry["name"] not in faster:
            continue
        bound = peaks.get(entry["activations"])
        if bound is None:
            continue
        ratio, goal = faster[entry["name"]], PRGE_GOALS[entry["weights"]]
        eager = theirs[ratio["to"]]
        gflop = planned(measured_variant(entry)) / 1e9
        least, ours = gflop / bound, entry["step_seconds_fastest"]
        rows.append(
            [
                f"{entry['weights']}/{entry['activations']}",
                round(gflop, 1),
                round(bound),
                least,
                ours,
                f"{least / ours:.0%}",
                eager,
                f"{gflop / eager / peak['gflops']:.0%}",
                ratio["ratio_of_fastest"],
                f"{goal:.1f}",
                f"{least * goal / eager:.0%}",
            ]
        )
    header = ["weights", "GFLOP", "peak, GFLOP/s", "s at the peak", "fastest s", "of the peak"]
    more = [
        "PyTorch's fastest s",
        "of its peak",
        "times as fast",
        "goal",
        "of the peak that it asks",
    ]
    return markdown_table([*header, *more], rows)


def of_prge(result: Mapping[str, Any], peak: Mapping[str, Any], progress: Progress) -> str:
    """The table of ``prge``.

    Raises:
        ZoExportError: a step that was measured cannot be planned.
    """
    measured_on = result["conditions"]

    def planned(variant: Variant) -> int:
        plan = plan_training(
            measured_on["model"]["source"],
            method=variant.method,
            target=measured_on["target"],
            settings={**measured_on["settings"], **variant.settings()},
            progress=progress,
        )
        return int(plan["flops_per_step"])

    return prge_table(result, peak, planned)


def machine(result: Mapping[str, Any], peak: Mapping[str, Any]) -> str:
    """What the peaks are of."""
    of_bytes = ""
    if "byte_gops" in peak:
        of_bytes = f"{peak['byte_gops']:.0f} of bytes ({peak['bytes_variant']}), "
    about = result["conditions"]
    return (
        f"{about['cpu']}, {peak['threads']} threads, {peak['variant']}: {peak['gflops']:.0f} GFLOP/s of multiply-adds "
        f"in registers, {of_bytes}{peak['gb_s']:.1f} GB/s of reads from memory; steps of {about['date'][:10]}."
    )


def _steps(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in result["results"] if entry["method"] == "mebp"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="whose marked part is renewed")
    parser.add_argument("folder", type=Path, help="that zoexport bench wrote")
    parser.add_argument("--work", type=Path, help="where bundles are kept")
    parser.add_argument(
        "--peak", type=Path, default=PEAK, help="the program that measures the peaks"
    )
    chosen = parser.parse_args(arguments)

    def renewed(clock: Clock) -> None:
        result = measured(chosen.folder)
        first_order = bool(_steps(result))
        mark = MARK if first_order else PRGE_MARK
        marked(chosen.page, mark)
        clock("measuring the peaks", None)
        peak = measured_peak(chosen.peak, result["conditions"]["threads"])
        if first_order:
            kept = bundles.kept_in(bundles.work_folder(chosen.work))
            tables = steps_table(result, kept, peak, clock)
        else:
            tables = of_prge(result, peak, clock)
        publish(chosen.page, mark, f"{tables}\n\n- {machine(result, peak)}")

    return exit_status(renewed)


if __name__ == "__main__":
    raise SystemExit(main())
