"""``make report-convergence``: held-out loss and token accuracy against steps, FLOPs and time.

``python -m research.convergence.measure PAGE`` lets MeBP, P-RGE and MeZO train the same adapters of the same model on
the same rows of plain text, each over programs of single layers, in ``zoexport-runner``; every so many steps the
held-out rows are evaluated. States, and the points that are done, are kept in the cache folder, so the same command
goes on where it was stopped. ``page`` writes the page's marked part, its tables and the raw runs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.convergence import page
from research.support.command import Clock, add_places, exit_status
from research.support.page import marked
from research.support.products import Content, contents
from research.support.tables import RAW
from zoexport import models
from zoexport.core.cores import usable_cores
from zoexport.core.files import atomic_file
from zoexport.core.progress import Progress
from zoexport.data import corpus
from zoexport.data.samples import Samples
from zoexport.session import Bundle
from zoexport.tools.bench import bundles, conditions, runner
from zoexport.tools.bench.matrix import Shape, Variant, first_order

MODEL = "smollm2-135m"
RESULTS = RAW / "convergence"
SEQ_LEN = 256
SETTINGS = {"lora.target_modules": "all-linear", "lora.r": "16", "weights": "int4"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run.

    Attributes:
        steps: in total, evaluated every ``every``.
        learning_rate: constant.
        num_queries: of a zeroth-order method.
    """

    method: str
    steps: int
    every: int
    learning_rate: float
    num_queries: int = 1


CURVES = (
    Curve("mebp", 300, 30, 2e-4),
    Curve("prge", 320, 40, 1e-3, num_queries=4),
    Curve("mezo", 1200, 120, 5e-4),
)
"""An hour together on two cores, the zeroth-order methods most of it."""


def shortened(curves: Sequence[Curve], share: float) -> list[Curve]:
    """Curves of a share of the steps, evaluated as often where that leaves two steps in between."""
    found = []
    for curve in curves:
        every = max(2, round(curve.every * share))
        steps = max(1, round(curve.steps * share / every)) * every
        found.append(dataclasses.replace(curve, steps=steps, every=every))
    return found


def measure(
    model: str,
    data: Samples,
    curves: Sequence[Curve],
    *,
    max_length: int,
    threads: int,
    work: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Train and evaluate every curve; what an earlier call did is not done again.

    Args:
        model: a MODEL argument.
        data: rows as ``{"text"}``.
        max_length: of the programs; rows have as many tokens or more.
        threads: of the engine.
        work: where bundles, states and points are kept.
        progress: called with what is being done and how far the curve is.

    Returns:
        ``curves``: of each its settings, ``gflop_per_step``, ``seconds_per_step``, ``peak_anonymous_mb`` and ``points``
        (steps, tflop, seconds, loss, token_accuracy); and ``conditions``.

    Raises:
        ZoExportError: something cannot be compiled or run, or a run diverged.
    """
    source = models.resolve(model)
    digest = models.fingerprint(source)
    variants = {curve: _variant(curve, max_length) for curve in curves}
    bundles.check(list(variants.values()), "host", _rank())
    found, about, load = [], None, conditions.load_average()
    for curve, variant in variants.items():
        bundle = bundles.bundle_of(
            variant,
            model=source.argument,
            model_sha256=digest,
            target="host",
            settings=_rank(),
            folder=bundles.kept_in(work),
            progress=progress,
        )
        run = _Run(curve, bundle, data, threads, work, progress)
        found.append(run.curve())
        about = run.manifest["model"]
    assert about is not None
    return {
        "curves": found,
        "conditions": {
            "model": {key: about[key] for key in ("name", "parameters", "sha256")},
            "date": datetime.date.today().isoformat(),
            "settings": SETTINGS | {"max_length": str(max_length), "batch_size": "1"},
            "threads": threads,
            "load_average": [load, conditions.load_average()],
            **conditions.machine(),
        },
    }


def _rank() -> dict[str, str]:
    return {"lora.r": SETTINGS["lora.r"]}


def _variant(curve: Curve, max_length: int) -> Variant:
    queries = 1 if first_order(curve.method) else curve.num_queries
    shape = Shape(max_length, 1, queries, targets=SETTINGS["lora.target_modules"])
    return Variant(curve.method, SETTINGS["weights"], shape)


class _Run:
    """One curve's state and points in a folder of its own."""

    def __init__(
        self,
        curve: Curve,
        bundle: Path,
        data: Samples,
        threads: int,
        work: Path,
        progress: Progress,
    ) -> None:
        self._curve, self._bundle, self._threads, self._progress = curve, bundle, threads, progress
        self.manifest = Bundle.open(bundle).manifest
        texts = [data.train.read_bytes(), data.test.read_bytes()]
        key = [self.manifest["bundle_id"], dataclasses.asdict(curve), threads]
        key += [hashlib.sha256(text).hexdigest() for text in texts]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        self._folder = work / "convergence" / f"{curve.method}-{name}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._examples = [self._tokenized(path) for path in (data.train, data.test)]

    def curve(self) -> dict[str, Any]:
        """The curve, trained and evaluated as far as it is not yet."""
        done = self._read()
        wanted = range(0, self._curve.steps + 1, self._curve.every)
        for steps in wanted:
            if steps not in done:
                self._say(steps, done)
                done[steps] = self._point(steps)
                self._write(done)
        points = [done[steps] for steps in wanted]
        timed = [point for point in points if point["step_seconds"]]
        seconds = statistics.median([each for point in timed for each in point["step_seconds"]])
        content = contents(self._bundle)
        flops = flops_of_step(timed[-1]["calls"], content)
        return {
            **dataclasses.asdict(self._curve),
            "num_queries": None if first_order(self._curve.method) else self._curve.num_queries,
            "gflop_per_step": round(flops / 1e9, 6),
            "seconds_per_step": round(seconds, 4),
            "peak_anonymous_mb": max((point["anonymous_mb"] or 0 for point in timed), default=0),
            "points": [
                {
                    "steps": point["steps"],
                    "tflop": round(point["steps"] * flops / 1e12, 9),
                    "seconds": round(point["steps"] * seconds, 4),
                    "loss": point["loss"],
                    "token_accuracy": point["token_accuracy"],
                }
                for point in points
            ],
        }

    def _point(self, steps: int) -> dict[str, Any]:
        """Train to ``steps`` and evaluate."""
        train, test = self._examples
        state = self._folder / "state" if steps else None
        point: dict[str, Any] = {
            "steps": steps,
            "step_seconds": [],
            "calls": {},
            "anonymous_mb": None,
        }
        if state is not None:
            *lines, result = runner.train(
                self._bundle,
                train,
                state,
                threads=self._threads,
                steps=steps,
                learning_rate=self._curve.learning_rate,
            )
            # A state that a killed run left may need no step. The first of a process reads files for the first time.
            if lines:
                sample = runner.sample(lines, result, warmup=min(1, len(lines) - 1))
                point["step_seconds"], point["calls"] = sample.seconds, sample.calls
                point["anonymous_mb"] = sample.peak_anonymous_mb
        evaluation = self._evaluation(test, state)
        return point | {key: evaluation[key] for key in ("loss", "token_accuracy")}

    def _evaluation(self, examples: Path, state: Path | None) -> dict[str, Any]:
        """The runner's of a state, or of the bundle as compiled."""
        arguments = ["eval", "--bundle", self._bundle, "--examples", examples]
        arguments += ["--threads", self._threads]
        if state is not None:
            arguments += ["--state", state]
        printed, _ = runner.call(self._bundle, arguments)
        return printed[-1]

    def _say(self, steps: int, done: Mapping[int, Mapping[str, Any]]) -> None:
        last = f", loss {done[max(done)]['loss']:.4f}" if done else ""
        text = f"{self._curve.method}: to step {steps} of {self._curve.steps}{last}"
        self._progress(text, steps / self._curve.steps)

    def _tokenized(self, path: Path) -> Path:
        examples = self._folder / f"{path.stem}-examples.jsonl"
        if not examples.exists():
            Bundle.open(self._bundle).write_tokens(path, examples)
        return examples

    def _read(self) -> dict[int, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):  # none yet
            lines = (self._folder / "points.jsonl").read_text(encoding="utf-8").splitlines()
            return {point["steps"]: point for point in map(json.loads, lines)}
        return {}

    def _write(self, done: Mapping[int, Mapping[str, Any]]) -> None:
        with atomic_file(self._folder / "points.jsonl") as temporary:
            text = "".join(json.dumps(point) + "\n" for point in done.values())
            temporary.write_text(text, encoding="utf-8")


def flops_of_step(calls: Mapping[str, float], found: Mapping[str, Content]) -> float:
    """Floating-point operations of all products of a step that calls programs so often."""
    return sum(count * found[name].flops for name, count in calls.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Convergence of MeBP, P-RGE and MeZO.")
    add_places(parser, RESULTS)
    parser.add_argument("--share", type=float, default=1.0, help="of the steps, for a short run")
    parser.add_argument("--threads", type=int, default=usable_cores())
    chosen = parser.parse_args(arguments)

    def measured(clock: Clock) -> None:
        marked(chosen.page, page.MARK)
        result = measure(
            MODEL,
            corpus.rows(SEQ_LEN),
            shortened(CURVES, chosen.share) if chosen.share < 1 else CURVES,
            max_length=SEQ_LEN,
            threads=chosen.threads,
            work=bundles.work_folder(),
            progress=clock,
        )
        page.write(chosen.page, chosen.results, result)

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main())
