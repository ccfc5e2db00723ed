"""Some steps of a bundle in a process that does nothing else: the standalone runner."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from zoexport.core.children import child, last_line
from zoexport.core.errors import BundleError
from zoexport.native import runner_path

LEARNING_RATE = 1e-6
"""Small: the tokens teach nothing, and a run that diverges would stop."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What some steps of a variant cost.

    Attributes:
        seconds: of each step that counts.
        parts: seconds of a step by what was done: the bundle's programs, and the session's own work; for the
            baseline perturbation, forward pass and update.
        load_seconds: from opening the bundle until its program can run, None for the baseline.
        peak_rss_mb: VmHWM of the process. peak_anonymous_mb: the most RssAnon after a step.
    """

    seconds: list[float]
    parts: dict[str, float]
    load_seconds: float | None
    peak_rss_mb: float | None
    peak_anonymous_mb: float | None


def run_steps(bundle: Path, examples: Path, *, threads: int, steps: int, warmup: int) -> Sample:
    """Start the runner on a bundle, take ``warmup`` + ``steps`` steps of a fresh state, and measure the latter.

    Raises:
        BundleError: the bundle cannot be run; carries what the runner said.
    """
    with (
        tempfile.TemporaryDirectory(prefix="zoexport-") as scratch,
        tempfile.TemporaryFile() as log,
    ):
        arguments = ["train", "--bundle", bundle, "--examples", examples, "--state"]
        arguments += [Path(scratch) / "state", "--steps", warmup + steps, "--threads", threads]
        arguments += ["--lr", LEARNING_RATE, "--schedule", "constant", "--loss", "full"]
        arguments += ["--accumulate", 1, "--json", "--timings"]
        with child([str(runner_path()), *map(str, arguments)], errors=log) as process:
            output, _ = process.communicate()
        if process.returncode != 0:
            raise _failed(bundle, output, last_line(log), process.returncode)
    *lines, result = map(json.loads, output.splitlines())
    return sample(lines, result, warmup)


def sample(lines: list[dict[str, Any]], result: dict[str, Any], warmup: int) -> Sample:
    """What the runner printed (a line a step, then its result) as a sample, without the first steps."""
    counted = lines[warmup:]
    seconds = [line["seconds"] for line in counted]
    before = lines[warmup - 1]["programs"] if warmup else {}
    parts = {
        name: (cost["seconds"] - before.get(name, {"seconds": 0.0})["seconds"]) / len(counted)
        for name, cost in counted[-1]["programs"].items()
    }
    parts["session"] = max(0.0, sum(seconds) / len(seconds) - sum(parts.values()))
    loading = sum(cost["load_seconds"] for cost in result["programs"].values())
    return Sample(
        seconds=seconds,
        parts=parts,
        load_seconds=result["open_seconds"] + loading,
        peak_rss_mb=result["peak_rss_mb"],
        peak_anonymous_mb=result["peak_anonymous_mb"],
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
