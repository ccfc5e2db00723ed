"""All states that a crash may leave, tried one by one, and counted.

``python -m tests.crash.states docs/results/trust.md`` tries all of every method and renews the page's table: half an
hour of a core.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.crash.points import (
    FAULTS,
    HEADER,
    PAGE,
    Call,
    Golden,
    Runs,
    cases,
    outcome,
    resumed,
    write_examples,
)
from tests.crash.power import Disk, Image
from tests.support.compiled import Compiler

#: Settings of each method; with Adam, a run that goes on makes the averages anew from the log.
METHODS: dict[str, Mapping[str, Any]] = {
    "prge": {"num_queries": 2},
    "prge with adam": {"num_queries": 2, "optimizer": "adam"},
    "mezo": {"num_queries": 2},
    "fzoo": {"num_queries": 2},
    "mebp": {},
    "senszoq": {"num_queries": 2},
    "quzo": {"num_queries": 2},
    "spzo": {},
}
#: What their names end in where the log goes on to another page in the first process that may be cut short.
PAGES = ", second page"
#: Likewise where held-out examples are evaluated after each step.
VALIDATES = ", held out"
#: Likewise where examples are pairs, and the reference model's scores of them are kept.
PAIRS = ", dpo"
#: Every run: a log of zeroth-order records, which ends with a page, and one of first-order ones, which does not.
NAMES = (
    *METHODS,
    *(name + more for more in (PAGES, VALIDATES) for name in ("prge", "mebp")),
    "mebp" + PAIRS,
)
#: The column of each fault.
KINDS = {"kill": "kill", "torn": "kill", "short": "short write", "full": "ENOSPC"}
POWER = "power loss"
COLUMNS = ("kill", "short write", "EINTR", "EIO", "ENOSPC", POWER)
MARKS = "<!-- crashes -->\n", "<!-- /crashes -->\n"


@dataclasses.dataclass
class Tally:
    """What was tried of one run, and what came of it.

    Attributes:
        tried: by kind; of lost power the different contents of the disk.
        problems: what is wrong, a line each.
        lost: at worst, by kind, the steps that were reported (for lost power: in the log) and had to be made again.
        record: bytes of a step in the log.
    """

    tried: Counter[str]
    problems: list[str]
    lost: dict[str, int]
    record: int

    @classmethod
    def of(cls, golden: Golden) -> Tally:
        """Nothing yet."""
        return cls(Counter(), [], dict.fromkeys(COLUMNS, 0), golden.record)

    def add(self, kind: str, problems: list[str], lost: int) -> None:
        """One more state."""
        self.tried[kind] += 1
        self.problems += problems
        self.lost[kind] = max(self.lost[kind], lost)


def prepare(compiler: Compiler, name: str, folder: Path) -> tuple[Runs, Golden]:
    """The runs of one of ``NAMES``, and the one that nothing cuts short."""
    method = name.removesuffix(PAGES).removesuffix(VALIDATES).removesuffix(PAIRS)
    bundle = compiler.bundle(
        "llama_tied", method.partition(" ")[0], weights="int4", **METHODS[method]
    )
    pairs = name.endswith(PAIRS)
    examples = write_examples(folder / "examples.jsonl", candidates=2 if pairs else 1)
    start = 0
    if name.endswith(PAGES):
        record = 20 + 4 * METHODS[method].get("num_queries", 0)
        start = -(-(PAGE - HEADER) // record) - 1
    loss = "dpo" if pairs else "full"
    runs = Runs(bundle, examples, folder, start, name.endswith(VALIDATES), loss)
    return runs, runs.undisturbed()


def faults(runs: Runs, golden: Golden, stride: int = 1, first: int = 0) -> Tally:
    """Let calls meet faults: every case, or one in ``stride``."""
    tally = Tally.of(golden)
    for phase, call, fault in [*cases(golden, FAULTS)][first::stride]:
        found = outcome(runs, golden, phase, call, fault)
        place = f"process {phase}, call {call.number} ({call.operation} {Path(call.path).name}), {fault}"
        problems = [f"{place}: {problem}" for problem in found.problems]
        tally.add(KINDS.get(fault, fault), problems, found.lost)
    return tally


def losses_of_power(
    runs: Runs, golden: Golden, stride: int = 1, first: int = 0, until: int | None = None
) -> Tally:
    """Lose power after every call, or after one in ``stride``, with every content that the disk may have then.

    ``until``: after so many calls at most.
    """
    tally = Tally.of(golden)
    before = None
    if runs.start:
        # Several tests lose the power of the same runs.
        before = runs.folder / "before"
        shutil.copytree(golden.before[0], before / "state", dirs_exist_ok=True)

    def disk_of(processes: list[list[Call]]) -> Disk:
        return Disk(
            [call for process in processes for call in process], golden.state.parent, before
        )

    disk = disk_of(golden.calls)
    ends = [len(disk_of(golden.calls[: number + 1]).events) for number in range(len(runs.phases))]
    boot = runs.folder / "boot"
    boot.write_text("00000000-0000-4000-8000-000000000000\n")
    mapped = {path.name: path.read_bytes() for path in golden.state.glob("work.bin")}
    seen: dict[Image, tuple[list[str], int | None]] = {}
    last = len(disk.events) if until is None else until
    for moment, image in ((m, i) for m in range(first, last + 1, stride) for i in disk.images(m)):
        written, synced = (
            max(0, size - HEADER) // golden.record
            for size in disk.sizes(moment, "state/trajectory.log")
        )
        if image not in seen:
            state = runs.state("dark")
            shutil.rmtree(state.parent, ignore_errors=True)
            image.write(state.parent, mapped)
            golden.steps(state)
            seen[image] = resumed(runs, golden, state, boot)
            tally.add(POWER, [f"moment {moment}: {problem}" for problem in seen[image][0]], 0)
        kept = seen[image][1]
        if kept is None:
            continue
        tally.lost[POWER] = max(tally.lost[POWER], written - kept)
        # What a process had saved when it ended is not lost; nor, where records alone are needed, what was synced.
        saved = [s for s, end in zip(runs.phases, ends, strict=True) if moment >= end]
        promised = max([runs.start, *saved, 0 if mapped else synced])
        if kept < promised:
            tally.problems.append(
                f"moment {moment}: {promised} steps were safe, it goes on from {kept}"
            )
    return tally


def table(tallies: Mapping[str, Tally]) -> list[str]:
    """The lines of the page's table."""
    lines = [
        "| run | "
        + " | ".join(COLUMNS)
        + " | violations | reported steps lost without power loss | with |",
        "| --- | " + " | ".join("---" for _ in COLUMNS) + " | --- | --- | --- |",
    ]
    for name, tally in tallies.items():
        alive = max(lost for kind, lost in tally.lost.items() if kind != POWER)
        dark = tally.lost[POWER]
        cells = [name, *(str(tally.tried[kind]) for kind in COLUMNS), str(len(tally.problems))]
        cells += [f"{lost}, {lost * tally.record} bytes" for lost in (alive, dark)]
        lines.append("| " + " | ".join(cells) + " |")
    total = sum((tally.tried for tally in tallies.values()), Counter[str]())
    wrong = sum(len(tally.problems) for tally in tallies.values())
    cells = ["all", *(str(total[kind]) for kind in COLUMNS), str(wrong), "", ""]
    return [*lines, "| " + " | ".join(cells) + " |"]


def all_of(name: str) -> Tally:
    """Try everything of one run."""
    with tempfile.TemporaryDirectory() as folder:
        runs, golden = prepare(Compiler(), name, Path(folder))
        both = faults(runs, golden), losses_of_power(runs, golden)
    return dataclasses.replace(
        both[0],
        tried=both[0].tried + both[1].tried,
        problems=both[0].problems + both[1].problems,
        lost={kind: max(one.lost[kind] for one in both) for kind in COLUMNS},
    )


def main() -> int:
    """Try everything, print it as it comes, and renew the marked part of a page."""
    page = Path(sys.argv[1])
    tallies = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name, tally in zip(NAMES, pool.map(all_of, NAMES), strict=True):
            tallies[name] = tally
            print(table({name: tally})[2], *tally.problems, sep="\n", flush=True)
    before, rest = page.read_text("utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    lines = "\n".join(table(tallies))
    page.write_text(f"{before}{MARKS[0]}\n{lines}\n\n{MARKS[1]}{after}", encoding="utf-8")
    return int(any(tally.problems for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
