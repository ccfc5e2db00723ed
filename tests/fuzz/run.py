"""Runs the fuzz targets, each for its share of CPU time, and says what they reached.

    python -m tests.fuzz.run --build build/fuzz --seconds 600
    python -m tests.fuzz.run --build build/fuzz --total 3600 --figures tests/fuzz/figures.json

The second one gives each target what it lacks of an hour in all its runs.

Targets are the programs ``fuzz_*`` of the build folder, and the modules ``fuzz_*`` of this package where atheris is
installed. An input that crashes, hangs or takes too much memory is kept in tests/fuzz/corpus/<target>, from where every
later run and the tests take it. What else was found interesting stays in the build folder. The figures of a run are
added to figures.json there; --figures names another file, such as tests/fuzz/figures.json, which
docs/results/trust.md shows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
#: Of all the fuzzing that this project had, on whatever machine.
FIGURES = HERE / "figures.json"
MEMORY_MB = 512
LONGEST_INPUT = 1 << 16
#: Of wall time, which is many times an input's own on a machine that is busy with other things.
HANG_SECONDS = 120
#: CPU seconds after which a target's figures are written, and another one has its turn.
SLICE_SECONDS = 120.0
#: Of the inputs of a target that --keep adds.
KEPT_BYTES = 20000
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Target:
    """A fuzz target; ``left`` is the CPU time of this run that it still has."""

    name: str
    command: list[str]
    left: float
    running: bool = False
    finds: list[str] = field(default_factory=list)
    status: int = 0


def targets(build: Path, python: bool) -> list[tuple[str, list[str]]]:
    """Names and commands of all targets."""
    programs = sorted(path for path in build.glob("fuzz_*") if path.is_file())
    found = [(path.name.removeprefix("fuzz_"), [str(path)]) for path in programs]
    if python:
        for path in sorted(HERE.glob("fuzz_*.py")):
            command = [sys.executable, "-m", f"tests.fuzz.{path.stem}"]
            found.append((path.stem.removeprefix("fuzz_"), command))
    return found


def cpu_seconds(process: int) -> float:
    """CPU time that a process has taken so far."""
    text = Path(f"/proc/{process}/stat").read_text("utf-8")
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def run(target: Target, build: Path, seconds: float) -> dict[str, Any]:
    """Run one target for so much CPU time; its figures."""
    grown, kept = build / "corpus" / target.name, CORPUS / target.name
    given = build / "seeds" / target.name
    for folder in (grown, kept, given):
        folder.mkdir(parents=True, exist_ok=True)
    words = build / "seeds" / f"{target.name}.dict"
    before = set(kept.iterdir())
    log = build / f"{target.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *target.command,
                f"-rss_limit_mb={MEMORY_MB}",
                f"-timeout={HANG_SECONDS}",
                "-report_slow_units=100000",
                f"-max_len={LONGEST_INPUT}",
                f"-artifact_prefix={kept}/",
                "-print_final_stats=1",
                *([f"-dict={words}"] if words.exists() else []),
                str(grown),
                str(given),
                str(kept),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # What was freed is kept for finding late uses of it, 256 MB if nobody says, and counts for -rss_limit_mb.
            env={**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=64"},
        )
        asked = False
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if not asked and cpu_seconds(process.pid) >= seconds:
                process.send_signal(signal.SIGUSR1)  # libFuzzer ends after the input that runs
                asked = True
            time.sleep(0.2)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    text = log.read_text("utf-8", "replace")

    def last(pattern: str) -> int:
        found = re.findall(pattern, text)
        return int(found[-1]) if found else 0

    return {
        "edges": last(r"cov: (\d+)"),
        "executions": last(r"stat::number_of_executed_units:\s*(\d+)"),
        "peak_mb": last(r"stat::peak_rss_mb:\s*(\d+)"),
        "cpu_seconds": round(ended[2].ru_utime + ended[2].ru_stime, 1),
        "finds": sorted(path.name for path in set(kept.iterdir()) - before),
        "status": process.returncode,
    }


def add(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The figures of a target's earlier runs, and those of one more."""
    return {
        "edges": max(known.get("edges", 0), found["edges"]),
        "executions": known.get("executions", 0) + found["executions"],
        "cpu_seconds": round(known.get("cpu_seconds", 0) + found["cpu_seconds"], 1),
        "peak_mb": max(known.get("peak_mb", 0), found["peak_mb"]),
        "finds": sorted({*known.get("finds", []), *found["finds"]}),
    }


class Figures:
    """A file of figures, by target."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """Of all targets."""
        return json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}

    def add(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        """Add one more run of a target; its figures then."""
        with self.lock:
            known = self.read()
            known[name] = add(known.get(name, {}), found)
            written = self.path.with_suffix(".tmp")
            written.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
            written.replace(self.path)
            return known[name]


def run_all(chosen: list[Target], build: Path, jobs: int, figures: Figures) -> None:
    """Run targets in slices, ``jobs`` at a time, until none has time left or all have failed."""
    turn = threading.Condition()

    def work() -> None:
        while True:
            with turn:
                while True:
                    waiting = [one for one in chosen if one.left > 0]
                    ready = [one for one in waiting if not one.running]
                    if not waiting or ready:
                        break
                    turn.wait()
                if not waiting:
                    return
                target = max(ready, key=lambda one: one.left)
                target.running = True
            found = run(target, build, min(SLICE_SECONDS, target.left))
            total = figures.add(target.name, found)
            with turn:
                target.running = False
                target.left -= max(found["cpu_seconds"], 0.1)
                target.finds += found["finds"]
                if found["status"] != 0:
                    target.status, target.left = found["status"], 0
                now = {"target": target.name, **found, "all_runs": total}
                sys.stdout.write(json.dumps(now) + "\n")
                sys.stdout.flush()
                turn.notify_all()

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()


def keep(name: str, command: list[str], build: Path) -> int:
    """Add to a target's kept inputs what reaches much, the shortest first; how many that are."""
    kept, chosen = CORPUS / name, build / "chosen" / name
    shutil.rmtree(chosen, ignore_errors=True)
    chosen.mkdir(parents=True)
    grown = [
        folder for folder in (build / "corpus" / name, build / "seeds" / name) if folder.exists()
    ]
    subprocess.run(
        [*command, "-set_cover_merge=1", f"-max_len={LONGEST_INPUT}", chosen, *grown],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    room = KEPT_BYTES
    found = 0
    for path in sorted(chosen.iterdir(), key=lambda one: one.stat().st_size):
        room -= path.stat().st_size
        if room >= 0:
            shutil.copyfile(path, kept / path.name)
            found += 1
    return found


def subject(name: str) -> str:
    """What a target reads: the first clause of its file."""
    (source,) = HERE.glob(f"fuzz_{name}.*")
    first = source.read_text("utf-8").lstrip('/" ')
    return re.split(r"[.:,;]\s", first, maxsplit=1)[0]


def table(figures: Figures) -> str:
    """The figures as docs/results/trust.md has them."""
    lines = [
        "| target | reads | edges | executions | CPU time | peak memory | finds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, known in sorted(figures.read().items()):
        lines.append(
            f"| `{name}` | {subject(name)} | {known['edges']} | {known['executions']:,} "
            f"| {known['cpu_seconds'] / 60:.0f} min | {known['peak_mb']} MB | {len(known['finds'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all targets, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="where the targets were built")
    parser.add_argument(
        "--seconds", type=float, default=600, help="CPU time of all targets together"
    )
    parser.add_argument(
        "--total", type=float, help="CPU time of each target, earlier runs of --figures counted"
    )
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument(
        "--keep", action="store_true", help="add what reaches much to the kept inputs alone"
    )
    parser.add_argument("--figures", type=Path, help="where figures are added; BUILD/figures.json")
    parser.add_argument("--table", action="store_true", help="print the figures alone")
    parser.add_argument("targets", nargs="*", help="some of them; all")
    options = parser.parse_args()
    figures = Figures(options.figures or options.build / "figures.json")
    if options.table:
        sys.stdout.write(table(figures))
        return 0
    known = targets(options.build, python=find_spec("atheris") is not None)
    unknown = set(options.targets) - {name for name, _ in known}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    named = [one for one in known if not options.targets or one[0] in options.targets]
    if options.keep:
        for name, command in named:
            sys.stdout.write(f"{name}: {keep(name, command, options.build)}\n")
        return 0
    so_far = figures.read()
    chosen = [
        Target(
            name,
            command,
            options.seconds / len(named)
            if options.total is None
            else max(0.0, options.total - so_far.get(name, {}).get("cpu_seconds", 0.0)),
        )
        for name, command in named
    ]
    # In a process of its own: a program begins with its parent's peak of memory, and these import torch.
    subprocess.run([sys.executable, "-m", "tests.fuzz.seeds", options.build / "seeds"], check=True)
    run_all(chosen, options.build, max(1, options.jobs), figures)
    return int(not chosen or any(target.status != 0 for target in chosen))


if __name__ == "__main__":
    sys.exit(main())
