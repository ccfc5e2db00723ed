"""How near the programs of a measured MeBP step are to what the machine's cores can do, and what a goal asks of them.

``python -m research.performance.roofline PAGE FOLDER`` takes what ``zoexport bench --grid mebp -o FOLDER`` measured on
this machine, measures the cores' peaks by ``build/bench_peak``, and puts two tables between the page's lines
``<!-- bench-roofline -->``: each program's operations and bytes, and each step beside PyTorch's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.performance.page import measured
from research.support.command import Clock, exit_status
from research.support.page import marked, replace
from zoexport.bench import bundles
from zoexport.bench.matrix import AUTOGRAD
from zoexport.bench.output import markdown_table
from zoexport.bench.products import Content
from zoexport.bench.programs import contents
from zoexport.core.errors import ConfigError

MARK = "bench-roofline"
PEAK = Path(__file__).parents[2] / "build" / "bench_peak"
GOALS = {128: 0.80}
"""Of the time of PyTorch's step, by tokens."""
USUAL_GOAL = 0.85


def measured_peak(program: Path, threads: int) -> dict[str, Any]:
    """``gflops`` of multiply-adds in registers and ``gb_s`` of reads from memory, of so many threads together.

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


def programs_table(
    result: Mapping[str, Any],
    computed: Mapping[str, Mapping[str, Content]],
    peak: Mapping[str, Any],
) -> str:
    """A row for each program of ``mebp`` that multiplies: its operations, its bytes and its rate beside the bound.

    Args:
        computed: what each bundle's programs compute, by its name.
    """
    rows = []
    seen = set()
    for entry in _steps(result):
        for program in entry["programs"]:
            at = entry["seq_len"], program["name"]
            if not program["gflop"] or at in seen:  # the head goes backward alike, whatever is kept
                continue
            seen.add(at)
            products = computed[entry["bundle"]][program["name"]].products
            gigabytes = sum(one.bytes * count for one, count in products.items()) / 1e9
            bound = min(peak["gflops"], program["gflop"] / gigabytes * peak["gb_s"])
            rate = program["gflop"] / program["call_seconds"]
            rows.append(
                [
                    entry["seq_len"],
                    program["name"],
                    program["gflop"],
                    round(gigabytes * 1e3, 1),
                    round(program["gflop"] / gigabytes),
                    round(bound, 1),
                    round(rate, 1),
                    f"{rate / bound:.0%}",
                ]
            )
    header = [
        "tokens",
        "program",
        "GFLOP",
        "MB",
        "FLOP a byte",
        "bound, GFLOP/s",
        "GFLOP/s",
        "of it",
    ]
    return markdown_table(header, rows)


def steps_table(result: Mapping[str, Any], peak: Mapping[str, Any]) -> str:
    """A row for each length: a step's operations, their time at the peak and as measured, and what the goal asks."""
    theirs = {
        entry["seq_len"]: entry["step_seconds"]
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
        tokens = entry["seq_len"]
        if tokens not in theirs:
            continue
        gflop = sum(program["gflop"] * program["calls"] for program in entry["programs"])
        least, goal = gflop / peak["gflops"], GOALS.get(tokens, USUAL_GOAL)
        asked = goal * theirs[tokens]
        rows.append(
            [
                tokens,
                entry["keep_mb"],
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
        "keep_mb",
        "GFLOP",
        "s at the peak",
        "s/step",
        "of the peak",
        "PyTorch s/step",
    ]
    return markdown_table([*header, "over PyTorch", "goal", "of the peak that it asks"], rows)


def text(result: Mapping[str, Any], folder: Path, peak: Mapping[str, Any]) -> str:
    """The page's part, of a measurement and the folder of its bundles.

    Raises:
        BundleError: a bundle that was measured is not there.
    """
    computed = {entry["bundle"]: contents(folder / entry["bundle"]) for entry in _steps(result)}
    machine = result["conditions"]
    return (
        f"{programs_table(result, computed, peak)}\n\n{steps_table(result, peak)}\n\n"
        f"{machine['cpu']}, {peak['threads']} threads, {peak['variant']}: {peak['gflops']:.0f} GFLOP/s of "
        f"multiply-adds in registers, {peak['gb_s']:.1f} GB/s of reads from memory; steps of {machine['date'][:10]}."
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
        marked(chosen.page, MARK)
        result = measured(chosen.folder)
        clock("measuring the peaks", None)
        peak = measured_peak(chosen.peak, result["conditions"]["threads"])
        kept = bundles.kept_in(bundles.work_folder(chosen.work))
        replace(chosen.page, MARK, text(result, kept, peak))

    return exit_status(renewed)


if __name__ == "__main__":
    raise SystemExit(main())
