"""What a bundle's step costs inside less memory than its weights take, page cache included.

``python -m research.performance.limited PAGE BUNDLE --ram-mb 600`` takes steps in the runner twice, without a limit and
inside a control group of Linux's with one, and compares what both wrote byte by byte. The figures go between the page's
lines ``<!-- bench-limited -->``, beside what ``zoexport plan --ram`` says for the rate at which the weights' file was
read. Needs a user who may make control groups.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from research.support.command import Clock, exit_status
from research.support.page import marked, publish
from zoexport.core.errors import ConfigError
from zoexport.session import Bundle
from zoexport.tools.bench import conditions
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.output import markdown_table
from zoexport.tools.bench.runner import LEARNING_RATE, train
from zoexport.tools.bench.workload import examples_file
from zoexport.tools.plan import plan_training

MARK = "bench-limited"
SETTINGS = (
    "max_length",
    "batch_size",
    "weights",
    "lora.r",
    "lora.target_modules",
    "lora.layers_to_transform",
    "activation_cache_mb",
)
"""That decide what a step takes; ``plan`` is asked with them."""
_GROUPS = Path("/sys/fs/cgroup")
_READ = 1 << 24


@contextlib.contextmanager
def memory_limit(mb: float) -> Iterator[Path]:
    """A control group whose processes take at most so much memory, mapped files and page cache included.

    Raises:
        ConfigError: the system lets this user make none.
    """
    first = (_GROUPS / "memory").is_dir()
    group = (_GROUPS / "memory" if first else _GROUPS) / f"zoexport-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if first else "memory.max")
    try:
        group.mkdir()
        limit.write_text(str(int(mb * 1e6)))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise ConfigError(
            f"control group {group}",
            found=str(error),
            expected="a group with a limit of memory",
            fix="Run this as root, on Linux with the memory controller.",
        ) from error
    try:
        yield group
    finally:
        group.rmdir()


def most_in(group: Path) -> float:
    """The most MB that a group's processes had at once."""
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        with contextlib.suppress(OSError):
            return int((group / name).read_text()) / 1e6
    raise ConfigError(
        f"control group {group}",
        found="no figure of the most memory",
        expected="memory.peak",
        fix="Use Linux 5.19 or newer.",
    )


def steps(
    bundle: Path, examples: Path, state: Path, count: int, threads: int, group: Path | None
) -> list[float]:
    """Seconds of each step of a fresh state, of a runner inside ``group``.

    Raises:
        BundleError: the runner failed; carries what it said.
    """
    within = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', group / "cgroup.procs") if group else ()
    *lines, _ = train(
        bundle,
        examples,
        state,
        threads=threads,
        steps=count,
        learning_rate=LEARNING_RATE,
        within=within,
    )
    return [line["seconds"] for line in lines]


def written(state: Path) -> dict[str, bytes]:
    """The files of a state that say what was learned."""
    return {
        path.name: path.read_bytes()
        for path in sorted(state.iterdir())
        if path.suffix in (".log", ".safetensors")
    }


def read_rate(file: Path) -> float:
    """MB a second at which a file is read that is in no cache."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        begin, count = time.monotonic(), 0
        while part := os.read(descriptor, _READ):
            count += len(part)
        rate = count / 1e6 / (time.monotonic() - begin)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return rate
    finally:
        os.close(descriptor)


def text(bundle: Path, ram_mb: float, count: int, threads: int, clock: Clock) -> str:
    """Measure; the page's part."""
    manifest = Bundle.open(bundle).manifest
    shape = Shape(manifest["settings"]["max_length"], manifest["settings"]["batch_size"], 1)
    weights = max(
        (bundle / name for name in manifest["files"]), key=lambda path: path.stat().st_size
    )
    with tempfile.TemporaryDirectory(prefix="zoexport-") as scratch:
        examples = examples_file(Path(scratch), shape, manifest["model"]["vocab_size"])
        clock("steps without a limit", None)
        free = steps(bundle, examples, Path(scratch) / "free", count, threads, None)
        clock("reading the weights", None)
        rate = read_rate(weights)
        clock(f"steps inside {ram_mb:.0f} MB", None)
        with memory_limit(ram_mb) as group:
            held = steps(bundle, examples, Path(scratch) / "held", count, threads, group)
            most = most_in(group)
        same = written(Path(scratch) / "free") == written(Path(scratch) / "held")
    settings = manifest["settings"]
    plan = plan_training(
        manifest["model"]["source"],
        method=manifest["method"],
        target=manifest["target"],
        settings={key: str(settings[key]) for key in SETTINGS if key in settings},
        threads=threads,
        ram_mb=ram_mb,
        disk_mb_s=rate,
        progress=clock,
    )
    unlimited, limited = statistics.median(free[1:]), statistics.median(held[1:])
    machine = conditions.machine()
    read, seconds = plan["from_disk_mb_per_step"], plan["disk_seconds_per_step"]
    header = [
        f"{manifest['model']['name']}, {manifest['method']}, {settings['weights']}, {shape.max_length} tokens",
        "",
    ]
    rows = [
        ["weights", f"{weights.stat().st_size / 1e6:.0f} MB"],
        [
            "memory that the processes may take, page cache included",
            f"{ram_mb:.0f} MB; they took {most:.0f}",
        ],
        ["seconds a step without a limit", f"{unlimited:.1f}"],
        ["with it", f"{limited:.1f} ({min(held[1:]):.1f} to {max(held[1:]):.1f})"],
        ["the disk reads", f"{rate:.0f} MB/s"],
        [
            "`plan --ram` reads a step",
            f"{read:.0f} MB: {seconds:.1f} s, with the arithmetic {unlimited + seconds:.1f} s at most",
        ],
        ["state and trajectory log", "the same bytes" if same else "OTHER BYTES"],
    ]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"- {machine['cpu']}, {threads} threads; {count - 1} steps after one that does not count; "
        f"{datetime.date.today().isoformat()}; load average {conditions.load_average()}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="whose marked part is renewed")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--ram-mb", type=float, default=600)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args(arguments)

    def renewed(clock: Clock) -> None:
        marked(chosen.page, MARK)
        made = text(chosen.bundle, chosen.ram_mb, chosen.steps, chosen.threads, clock)
        publish(chosen.page, MARK, made)

    return exit_status(renewed)


if __name__ == "__main__":
    sys.exit(main())
