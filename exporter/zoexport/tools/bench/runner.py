"""Some steps of a bundle in a process that does nothing else: the standalone runner."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoexport.core.children import child, last_line
from zoexport.core.errors import BundleError
from zoexport.core.memory import anonymous_peak
from zoexport.core.native import runner_path

LEARNING_RATE = 1e-6
"""Small: the tokens teach nothing, and a run that diverges would stop."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Cost of some steps of a variant.

    Attributes:
        seconds: time of each counted step.
        parts: seconds per step by part: the bundle's programs and the session's own work; for the
            baseline: perturbation, forward pass and update.
        load_seconds: from opening the bundle until its program can run; None for the baseline.
        peak_rss_mb: VmHWM of the process. peak_anonymous_mb: peak RssAnon (``core.memory``).
        calls: calls of each program per step.
    """

    seconds: list[float]
    parts: dict[str, float]
    load_seconds: float | None
    peak_rss_mb: float | None
    peak_anonymous_mb: float | None
    calls: dict[str, float] = dataclasses.field(default_factory=dict)


def run_steps(bundle: Path, examples: Path, *, threads: int, steps: int, warmup: int) -> Sample:
    """Start the runner on a bundle, take ``warmup`` + ``steps`` steps of a fresh state, and measure the latter.

    Raises:
        BundleError: the bundle cannot be run; carries what the runner said.
    """
    with tempfile.TemporaryDirectory(prefix="zoexport-") as scratch:
        state = Path(scratch) / "state"
        *lines, result = train(
            bundle,
            examples,
            state,
            threads=threads,
            steps=warmup + steps,
            learning_rate=LEARNING_RATE,
        )
    return sample(lines, result, warmup)


def train(
    bundle: Path,
    examples: Path,
    state: Path,
    *,
    threads: int,
    steps: int,
    learning_rate: float,
    within: Sequence[object] = (),
) -> list[dict[str, Any]]:
    """Let the runner train a state to ``steps`` steps in total, the loss over the whole vocabulary.

    Args:
        within: of :func:`call`.

    Returns:
        What it printed: an object a step that it took, then the result, whose ``peak_anonymous_mb`` is what was seen.

    Raises:
        BundleError: the bundle cannot be run, or the run diverged; carries what the runner said.
    """
    arguments = ["train", "--bundle", bundle, "--examples", examples, "--state", state]
    arguments += ["--steps", steps, "--threads", threads, "--timings"]
    for setting in (
        f"learning_rate={learning_rate}",
        "lr_scheduler_type=constant",
        "gradient_accumulation_steps=1",
    ):
        arguments += ["--set", setting]
    printed, peak = call(bundle, arguments, within)
    known = [value for value in (printed[-1]["peak_anonymous_mb"], peak) if value is not None]
    printed[-1]["peak_anonymous_mb"] = max(known, default=None)
    return printed


def call(
    bundle: Path, arguments: Sequence[object], within: Sequence[object] = ()
) -> tuple[list[dict[str, Any]], float | None]:
    """Run a command of the runner, the loss over the whole vocabulary.

    Args:
        within: a command that becomes the one that is appended to it.

    Returns:
        The objects that it printed, and the most anonymous memory in MB that it was seen to have.

    Raises:
        BundleError: the runner failed; carries what it said.
    """
    command = [*map(str, [*within, runner_path(), *arguments]), "--set", "loss=full", "--json"]
    with tempfile.TemporaryFile() as log:
        with child(command, errors=log) as process, anonymous_peak(process.pid) as peak:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise _failed(bundle, output, last_line(log), process.returncode)
    return [json.loads(line) for line in output.splitlines()], peak()


def with_peak(sample: Sample, seen: float | None) -> Sample:
    """Return the sample with the peak anonymous memory ``seen`` from outside, if it is higher."""
    known = [value for value in (sample.peak_anonymous_mb, seen) if value is not None]
    return dataclasses.replace(sample, peak_anonymous_mb=max(known, default=None))


def sample(lines: list[dict[str, Any]], result: dict[str, Any], warmup: int) -> Sample:
    """Convert the runner's output (steps, then the result) to a sample without warmup steps."""
    counted = lines[warmup:]
    seconds = [line["seconds"] for line in counted]

    def each_step(key: str) -> dict[str, float]:
        before = lines[warmup - 1]["programs"] if warmup else {}
        return {
            name: (cost[key] - before.get(name, {key: 0})[key]) / len(counted)
            for name, cost in counted[-1]["programs"].items()
        }

    parts = each_step("seconds")
    parts["session"] = max(0.0, sum(seconds) / len(seconds) - sum(parts.values()))
    loading = sum(cost["load_seconds"] for cost in result["programs"].values())
    return Sample(
        seconds=seconds,
        parts=parts,
        load_seconds=result["open_seconds"] + loading,
        peak_rss_mb=result["peak_rss_mb"],
        peak_anonymous_mb=result["peak_anonymous_mb"],
        calls=each_step("calls"),
    )


def _failed(bundle: Path, output: str, said: str, code: int) -> BundleError:
    last = output.splitlines()[-1] if output.strip() else "{}"
    error = json.loads(last).get("error") if last.startswith('{"error"') else None
    if error:
        return BundleError(error.pop("where"), **error)
    return BundleError(
        f"bundle {bundle}",
        found=f"a runner that ended with status {code} ({said})",
        expected="a bundle that this machine can step",
        fix="Try 'zoexport inspect' and 'zoexport train' on it.",
    )
