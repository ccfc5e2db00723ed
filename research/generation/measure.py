"""``make bench-generate``: tokens a second beside llama.cpp over weights of as many bits.

``python -m research.generation.measure PAGE`` generates with bundles and, by turns, with llama.cpp (the npm package
node-llama-cpp) on as many threads: SmolLM2-135M, and random weights in the shapes of Qwen2.5-0.5B. Each turn is a fresh
process. Medians over the rounds go between the page's lines ``<!-- bench-generate -->``.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from research.generation import models
from research.generation.ours import FIRST
from research.support import page
from research.support.command import Clock, exit_status
from research.support.llama_cpp import installed, program
from zoexport.core.children import child, last_line
from zoexport.core.errors import ConfigError
from zoexport.core.fetch import cache_dir
from zoexport.core.memory import anonymous_peak
from zoexport.tools.bench import conditions

MARK = "bench-generate"
PROMPT = 128
TOKENS = 64
_RATES = ("decode_tokens_per_second", "prefill_tokens_per_second")
_SCRIPT = Path(__file__).with_name("llama.mjs")
_OURS = Path(__file__).with_name("ours.py")
_READ = 256 << 20
"""Bytes whose reading is timed: more than caches hold."""

Sample = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """One model: medians of llama.cpp, and of ours by the format of activations."""

    compared: models.Compared
    ours: dict[str, Sample]
    theirs: Sample
    bytes_a_token: int


def turn(command: Sequence[str], asked: dict[str, Any]) -> Sample:
    """What one process says, with ``peak_mb``, its most anonymous memory beyond what it had before it opened a model.

    Raises:
        ConfigError: it failed; carries what it said.
    """
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as given:
        given.write(json.dumps(asked).encode())
        given.seek(0)
        with (
            child(command, stdin=given.fileno(), errors=errors) as process,
            anonymous_peak(process.pid) as peak,
        ):
            assert process.stdout is not None
            printed = process.stdout.read().splitlines()
            if process.wait() != 0 or not printed:
                raise ConfigError(
                    " ".join(command),
                    found=last_line(errors),
                    expected="a measurement",
                    fix="Run the command alone to see more.",
                )
            sample: Sample = json.loads(printed[-1])
            sample["peak_mb"] = (peak() or 0.0) - (sample["own_mb"] or 0.0)
    return sample


def compare(compared: models.Compared, threads: int, rounds: int, clock: Clock) -> Row:
    """All by turns; the first round of each, which reads the files, does not count."""
    prompt = [7919 * (place + 1) % compared.vocabulary for place in range(PROMPT)]
    asked = {"prompt": prompt, "tokens": TOKENS, "threads": threads}
    sides = {
        kind: ([sys.executable, str(_OURS)], bundle) for kind, bundle in compared.bundles.items()
    }
    sides["theirs"] = ([program("node"), str(installed(_SCRIPT))], compared.gguf)
    samples: dict[str, list[Sample]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        order = list(sides) if number % 2 else list(sides)[::-1]
        for side in order:
            command, model = sides[side]
            sample = turn(command, {**asked, "model": str(model.resolve())})
            if number > 0:
                samples[side].append(sample)
        clock(f"{compared.name}: round {number} of {rounds}", None)
    medians = {side: _medians(taken) for side, taken in samples.items()}
    theirs = medians.pop("theirs")
    return Row(compared, medians, theirs, bytes_a_token(compared.bundles["fp32"]))


def _medians(samples: Sequence[Sample]) -> Sample:
    return {key: statistics.median(one[key] for one in samples) for key in samples[0]}


def bytes_a_token(bundle: Path) -> int:
    """Of the weights that every token reads: those of all stages but the first, a table of which it reads one row."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    with (bundle / manifest["weights"]["file"]).open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    generate = manifest["generate"]
    roles = {
        (program["family"], value["name"]): value["role"]
        for program in generate["programs"]
        for value in program["inputs"]
    }
    total = 0
    for stage in generate["stages"][1:]:
        for local, name in stage["bind"].items():
            if roles.get((stage["forward"], local)) == "weight" and name in header:
                begin, end = header[name]["data_offsets"]
                total += end - begin
    return total


def read_bandwidth(threads: int) -> float:
    """Bytes a second that so many threads read from memory, the best of several times."""
    parts = np.array_split(np.ones(_READ // 8, np.uint64), threads)
    least = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(9):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            least = min(least, time.perf_counter() - start)
    return _READ / least


def _beside(one: Sample, other: Sample, key: str) -> str:
    """A rate, and how many times the other one it is."""
    ratio = "" if one is other else f" ({one[key] / other[key]:.2f}x)"
    return f"{one[key]:.0f}{ratio}"


def table(rows: Sequence[Row], threads: int, rounds: int, bandwidth: float) -> str:
    """The rows as Markdown, with what they depend on."""
    machine = conditions.machine()
    lines = [
        "| model | | decode, tokens/s | prompt of 128, tokens/s | anonymous MB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        named = {f"zoexport, INT4, activations {kind}": one for kind, one in row.ours.items()}
        for name, one in {**named, f"llama.cpp, {row.compared.weights}": row.theirs}.items():
            rates = [_beside(one, row.theirs, key) for key in _RATES]
            lines.append(
                f"| {row.compared.name} | {name} | {rates[0]} | {rates[1]} | {one['peak_mb']:.0f} |"
            )
    lines.append("")
    for row in rows:
        bound = bandwidth / row.bytes_a_token
        reached = (f"{one[_RATES[0]] / bound:.0%} with {kind}" for kind, one in row.ours.items())
        one = row.ours["fp32"]
        lines.append(
            f"{row.compared.name}: a token reads {row.bytes_a_token / 1e6:.0f} MB of weights, so memory allows "
            f"{bound:.0f} tokens/s; {', '.join(reached)} of that is reached. Opening takes "
            f"{one['open_seconds']:.2f} s, the first token after a prompt of {FIRST} tokens "
            f"{one['first_seconds']:.2f} s after that, its programs' loading included (fp32).\n"
        )
    load = conditions.load_average()
    used = f"{threads} thread{'s' if threads > 1 else ''}"
    lines.append(
        f"Medians of {rounds} rounds by turns, each in a fresh process, {used}, {TOKENS} "
        f"tokens after a prompt of {PROMPT}. Anonymous memory: the most of the process beyond what "
        f"the interpreter (Python, Node) had before it opened a model. {machine['cpu']}, "
        f"{machine['cores']} cores, {bandwidth / 1e9:.1f} GB/s read by {used}; load "
        f"average after it {load}; node-llama-cpp's own build of llama.cpp; "
        f"{datetime.date.today():%Y-%m-%d}."
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("smollm2", "qwen2"), help="one of the models")
    parser.add_argument("--files", type=Path, help="the folder of bundles and GGUF files, kept")
    given = parser.parse_args(arguments)

    def measure(clock: Clock) -> None:
        page.marked(given.page, MARK)
        folder = given.files or cache_dir() / "generation"
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for make in (models.smollm2, models.qwen2):
            if given.only in (None, make.__name__):
                rows.append(compare(make(folder, clock), given.threads, given.rounds, clock))
        bandwidth = read_bandwidth(given.threads)
        page.publish(given.page, MARK, table(rows, given.threads, given.rounds, bandwidth))

    return exit_status(measure)


if __name__ == "__main__":
    sys.exit(main())
