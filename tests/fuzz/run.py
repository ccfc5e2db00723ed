"""Runs the fuzz targets, each for its share of the time, and says what they reached.

    python -m tests.fuzz.run --build build/fuzz --seconds 600

An input that crashes, hangs or takes too much memory is kept in tests/fuzz/corpus/<target>, from where every later run
and the tests take it. What else was found interesting stays in the build folder.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fuzz import seeds

CORPUS = Path(__file__).parent / "corpus"
MEMORY_MB = 512
LONGEST_INPUT = 1 << 16
HANG_SECONDS = 20


def run(program: Path, build: Path, seconds: int) -> dict[str, Any]:
    """Run one target; its figures."""
    target = program.name.removeprefix("fuzz_")
    grown, kept = build / "corpus" / target, CORPUS / target
    for folder in (grown, kept):
        folder.mkdir(parents=True, exist_ok=True)
    before = set(kept.iterdir())
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [
            str(program),
            f"-max_total_time={seconds}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-timeout={HANG_SECONDS}",
            f"-max_len={LONGEST_INPUT}",
            f"-artifact_prefix={kept}/",
            "-print_final_stats=1",
            str(grown),
            str(build / "seeds" / target),
            str(kept),
        ],
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    log = done.stderr
    (build / f"{target}.log").write_text(log, "utf-8")

    def last(pattern: str) -> int:
        found = re.findall(pattern, log)
        return int(found[-1]) if found else 0

    return {
        "target": target,
        "edges": last(r"cov: (\d+)"),
        "executions": last(r"stat::number_of_executed_units:\s*(\d+)"),
        "peak_mb": last(r"stat::peak_rss_mb:\s*(\d+)"),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime),
        "finds": sorted(path.name for path in set(kept.iterdir()) - before),
        "status": done.returncode,
    }


def main() -> int:
    """Run all targets, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="where the targets were built")
    parser.add_argument("--seconds", type=int, default=600, help="of all targets together")
    parser.add_argument("targets", nargs="*", help="some of them; all")
    options = parser.parse_args()
    programs = sorted(path for path in options.build.glob("fuzz_*") if path.is_file())
    chosen = [path for path in programs if not options.targets or path.name[5:] in options.targets]
    seeds.write(options.build / "seeds")
    failed = not chosen
    for program in chosen:
        found = run(program, options.build, max(1, options.seconds // len(chosen)))
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        failed |= found["status"] != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
