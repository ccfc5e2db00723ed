"""``make report-learning``: held-out loss of methods that train on the same sentences, each with rates of its own.

``python -m research.learning.measure NAME PAGE`` trains the arms of one of :data:`COMPARISONS`, each rate with every
seed, and evaluates each now and then on sentences that choose the rate; the last step is evaluated on others. Where
runs take long the first seed alone chooses the rate, and the others have that one (``Comparison.narrows``). The same
command goes on where it was stopped: bundles and states are kept in the cache folder, runs that are done also in the
raw runs that ``page`` writes to ``--results``, so that another machine can go on.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.learning import page
from research.support.arms import ALL_WEIGHTS, Arm, estimators, split, unsplit
from research.support.cells import Cells, name_of
from research.support.command import Clock, add_places, exit_status
from research.support.page import marked
from research.support.rates import best_rate, beyond
from research.support.tables import RAW
from research.support.trained import Divided, divided, evaluated, trained
from zoexport import models
from zoexport.compiler.digest import compiler_digest
from zoexport.core.cores import usable_cores
from zoexport.core.errors import BundleError, ConfigError
from zoexport.core.fetch import cache_dir
from zoexport.core.progress import Progress
from zoexport.data import samples
from zoexport.session import Bundle
from zoexport.tools.bench import conditions
from zoexport.tools.bench.bundles import compile_apart
from zoexport.tools.plan import plan_training

MODEL = "smollm2-135m"
TARGET = "host"
RESULTS = RAW / "learning"
_LABELS = 2
"""Tokens of an example that are predicted: the sentences' choices have one each."""
COMMON = {
    "loss": "choices",
    "max_length": "64",
    "batch_size": "4",
    "num_queries": "4",
    "activations": "fp32",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Arms over one set of sentences.

    Attributes:
        common: settings of all arms.
        task: whose sentences are trained on, one of ``samples.TASKS``.
        seeds: of noise and order.
        steps: of a run. every: how many, after which it is evaluated; divides ``steps``.
        validated: examples that choose an arm's rate, which no run trains on: the last ones of the training file.
        tested: held-out examples that the result is of, from the beginning of their file.
        masked: the methods that take ``--mask``.
        narrows: whether the first seed chooses each arm's rate, trying others beyond an end that is best, and the
            other seeds have that one alone.
        equal: whether ``steps`` and ``every`` are of the first arm, and of others as many as make its operations.
        target: a validation loss to which each arm's operations are counted.
    """

    arms: tuple[Arm, ...]
    common: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(COMMON))
    task: str = "films"
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 100
    every: int = 50
    validated: int = 200
    tested: int = 500
    masked: tuple[str, ...] = ()
    narrows: bool = False
    equal: bool = False
    target: float | None = None


def _queries(count: int, rates: tuple[float, ...]) -> Arm:
    """So many of as few rows as make 16 with them."""
    settings = {"weights": "int4", "num_queries": str(count), "batch_size": str(16 // count)}
    return Arm(f"q = {count}, B = {16 // count}", "prge", settings, rates)


_PRGE = Arm("P-RGE", "prge", {"weights": "int4", "eps": "1e-3"}, (2e-3, 5e-3, 1e-2, 2e-2))


def _moments(optimizer: str, rates: tuple[float, ...]) -> Arm:
    """The same copies and differences, in programs of layers, with another update."""
    settings = {**_PRGE.settings, "granularity": "layer", "optimizer": optimizer}
    return Arm(f"P-RGE, {optimizer}", "prge", settings, rates)


_ALL_WEIGHTS = Arm("all weights", "mezo", ALL_WEIGHTS, (3e-6, 1e-5, 2e-5))
_WEIGHTS_RATES = (1e-5, 2e-5)
_LORA = {"weights": "int4"}
_LORA_RATES = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
COMPARISONS = {
    "senszoq": Comparison(
        arms=(
            Arm("SensZOQ", "senszoq", {"weights": "int4"}, (4e-5, 1e-4, 2e-4, 5e-4, 1e-3)),
            Arm("LoRA, query and value", "prge", _LORA, _LORA_RATES),
            # The paper's baseline: all linear layers, r = 8, alpha = 16.
            Arm(
                "LoRA, all linear layers",
                "prge",
                {**_LORA, "lora.target_modules": "all-linear", "lora.r": "8"},
                (5e-4, 1e-3, 2e-3, 5e-3, 1e-2),
            ),
            _ALL_WEIGHTS,
        ),
        masked=("senszoq",),
    ),
    # P-RGE's tables 1 and 2: as many rows in one forward pass, and operations a step.
    "queries": Comparison(
        arms=(
            _queries(1, (5e-4, 1e-3, 2e-3)),
            _queries(4, (2e-3, 5e-3, 1e-2)),
            _queries(16, (5e-3, 1e-2, 2e-2)),
        ),
        narrows=True,
    ),
    # FedSPZO's estimator, of one client.
    "split": Comparison(
        arms=(unsplit(2, _WEIGHTS_RATES), split("1,4", _WEIGHTS_RATES)),
        common={key: value for key, value in COMMON.items() if key != "num_queries"},
        steps=200,
        every=25,
        narrows=True,
        equal=True,
        target=0.6,
    ),
    # A step of INT8 is an eighteenth of one of INT4, so rates in grid steps are as much larger, squared.
    "quzo-int8": Comparison(arms=estimators("8", (1, 3, 10), eps="1"), narrows=True),
    "quzo-int4": Comparison(arms=estimators("4", (1e-3, 3e-3, 1e-2), eps="0.5"), narrows=True),
    # Adapters of integers over a frozen model of INT4.
    "quzo-adapters": Comparison(
        arms=(Arm("INT8 adapters", "quzo", {"train": "lora", "eps": "1"}, (100, 300, 1000)),),
        narrows=True,
    ),
    # 8 copies in one forward pass each: as many operations a step.
    "fzoo": Comparison(
        arms=(
            _PRGE,
            Arm(
                "FZOO",
                "fzoo",
                {"weights": "int4", "num_queries": "7", "eps": "1e-3"},
                (2e-3, 5e-3, 1e-2, 2e-2),
            ),
        ),
        steps=200,
    ),
    "adam": Comparison(
        arms=(
            _PRGE,
            _moments("momentum", (2e-3, 5e-3, 1e-2, 2e-2)),
            _moments("adam", (3e-4, 1e-3, 3e-3, 1e-2)),
            _moments("muon", (3e-3, 1e-2, 3e-2, 1e-1)),
        ),
        steps=200,
    ),
    "directions": Comparison(
        arms=(
            _PRGE,
            Arm(
                "A of activations",
                "prge",
                {**_PRGE.settings, "lora.init_weights": "activations"},
                (2e-3, 5e-3, 1e-2, 2e-2),
            ),
        ),
        steps=200,
    ),
}


def measure(
    comparison: Comparison,
    model: str,
    data: samples.Samples,
    *,
    mask: Path | None,
    command: str,
    work: Path,
    known: Mapping[str, Any],
    may_begin: Callable[[], bool],
    write: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Train and evaluate every arm; what an earlier call did is not done again.

    Args:
        model: a MODEL argument.
        data: examples with choices.
        mask: for the arms that train chosen weights.
        command: that measures this, for the page.
        work: where bundles, states and results are kept.
        known: the result of an earlier call, elsewhere too; its runs of the same bundles and data are not done again.
        may_begin: asked before each run; what it refuses is left out.
        write: called with the result after each run.
        progress: called with what is being done, and how much of that is done.

    Raises:
        ZoExportError: something cannot be compiled or trained.
    """
    load, source = conditions.load_average(), models.resolve(model)
    files = divided(data, comparison.validated, comparison.tested, work)
    digest = models.fingerprint(source)
    arms: list[dict[str, Any]] = []
    about: dict[str, Any] = {
        "command": command,
        "model": {"name": source.name, "sha256": digest},
        "date": datetime.date.today().isoformat(),
        "common": dict(comparison.common),
        "comparison": dataclasses.asdict(comparison),
        "load_average": [load, None],
        "threads": usable_cores(),
        **conditions.machine(),
    }
    runs: dict[str, _Runs] = {}
    for arm in comparison.arms:
        bundle = _bundle(arm, comparison, source.argument, digest, mask, work, progress)
        run = _Runs(arm.label, bundle, comparison, files, work, progress)
        planned = run.planned(arm, source.argument)
        if comparison.equal and arms:
            run.stretch(arms[0]["planned"]["flops"] / planned["flops"])
        run.take(known)
        runs[arm.label] = run
        entry = {**dataclasses.asdict(arm), "untrained": run.untrained(), "planned": planned}
        arms.append({**entry, "rates": list(arm.rates), "runs": []})
    # A seed of everything before the next, so that a run that is stopped compares what it has.
    for seed in comparison.seeds:
        for entry in arms:
            run = runs[entry["label"]]
            for rate in _rates(comparison, entry, seed):
                if run.kept(rate, seed) is None and not may_begin():
                    continue
                entry["runs"].append(run.run(rate, seed))
                entry["rates"] = sorted({*entry["rates"], rate})
                about["load_average"][1] = conditions.load_average()
                write({"arms": arms, "conditions": about})


def _rates(comparison: Comparison, entry: dict[str, Any], seed: int) -> Iterator[float]:
    """The rates that an arm is trained with for a seed; once one beyond an end has run, it is to be among the arm's."""
    if not comparison.narrows:
        yield from entry["rates"]
        return

    def best() -> float | None:
        first = [run for run in entry["runs"] if run["seed"] == comparison.seeds[0]]
        return best_rate(first, lambda run: run["points"][-1]["loss"])

    if seed != comparison.seeds[0]:
        chosen = best()
        if chosen is not None:
            yield chosen
        return
    yield from entry["rates"]
    while (following := beyond(entry["rates"], best())) is not None:
        yield following
        if following not in entry["rates"]:  # there was no time for it
            return


class _Runs:
    """Those of one bundle."""

    def __init__(
        self,
        label: str,
        bundle: Path,
        comparison: Comparison,
        data: Divided,
        work: Path,
        progress: Progress,
    ) -> None:
        self._label, self._bundle, self._comparison = label, bundle, comparison
        self._data, self._progress = data, progress
        self._cells, self._work = Cells(work / "trained"), work
        self._key = {
            "bundle": Bundle.open(bundle).manifest["bundle_id"],
            "data": data.digests(),
        }

    def stretch(self, factor: float) -> None:
        """Have ``factor`` times the comparison's steps, and as many evaluations."""
        chosen = self._comparison
        every = max(1, round(chosen.every * factor))
        steps = every * (chosen.steps // chosen.every)
        self._comparison = dataclasses.replace(chosen, every=every, steps=steps)

    def take(self, known: Mapping[str, Any]) -> None:
        """Runs of an earlier result that were of the same bundle, data, steps, rate and seed."""
        for arm in known.get("arms", []):
            for run in arm["runs"]:
                key = self._of(run["rate"], run["seed"])
                if run.get("cell") == name_of(key):
                    self._cells.get("run", key, lambda run=run: dict(run))  # type: ignore[misc]

    def untrained(self) -> dict[str, Any]:
        return self._cells.get(
            "untrained",
            self._key,
            lambda: evaluated(self._bundle, None, self._data.test, self._progress),
        )

    def planned(self, arm: Arm, model: str) -> dict[str, int]:
        """``flops`` and ``bytes`` of a step, as ``zoexport plan`` counts them."""
        settings = {**self._comparison.common, **arm.settings}
        labels = _LABELS * int(settings["batch_size"])

        def plan() -> dict[str, int]:
            found = plan_training(
                model,
                method=arm.method,
                target=TARGET,
                settings=settings,
                labels=labels,
                progress=self._progress,
            )
            return {"flops": found["flops_per_step"], "bytes": found["bytes_per_step"]}

        return self._cells.get("planned", {**self._key, "labels": labels}, plan)

    def kept(self, rate: float, seed: int) -> dict[str, Any] | None:
        """A run that is done."""
        return self._cells.kept("run", self._of(rate, seed))

    def run(self, rate: float, seed: int) -> dict[str, Any]:
        """``rate``, ``seed``, ``seconds_per_step``, ``cell``, the last step's ``test``, and ``points``.

        Points have ``steps``, and the validation's ``loss`` and ``accuracy``: None of a run that diverged.
        """
        return self._cells.get("run", self._of(rate, seed), lambda: self._points(rate, seed))

    def _of(self, rate: float, seed: int) -> dict[str, Any]:
        chosen = self._comparison
        return {
            **self._key,
            "rate": rate,
            "seed": seed,
            "steps": chosen.steps,
            "every": chosen.every,
        }

    def _points(self, rate: float, seed: int) -> dict[str, Any]:
        state = self._work / f"state-{name_of(self._of(rate, seed))}"
        points: list[dict[str, Any]] = []
        seconds: list[float] = []
        chosen = self._comparison
        for steps in range(chosen.every, chosen.steps + 1, chosen.every):
            found = trained(
                self._bundle,
                state,
                self._data.train,
                self._data.validation,
                rate=rate,
                steps=steps,
                seed=seed,
                label=f"{self._label}, rate {rate:g}, seed {seed}",
                progress=self._progress,
            )
            points.append({key: found[key] for key in ("steps", "loss", "accuracy")})
            if found["loss"] is None:
                break
            if found["seconds_per_step"] is not None:  # steps of an earlier call
                seconds.append(found["seconds_per_step"])
        test = None
        if points[-1]["loss"] is not None:
            test = evaluated(self._bundle, state, self._data.test, self._progress)
        shutil.rmtree(state, ignore_errors=True)
        return {
            "rate": rate,
            "seed": seed,
            "cell": name_of(self._of(rate, seed)),
            "seconds_per_step": statistics.median(seconds) if seconds else None,
            "points": points,
            "test": test,
        }


def _bundle(
    arm: Arm,
    comparison: Comparison,
    model: str,
    digest: str,
    mask: Path | None,
    work: Path,
    progress: Progress,
) -> Path:
    """The arm's, compiled now where there is none."""
    settings = {**comparison.common, **arm.settings}
    if arm.method in comparison.masked:
        if mask is None:
            raise ConfigError(
                "option --mask",
                found="none",
                expected=f"a mask of the model, which {arm.label} trains by",
                fix="Make one: zoexport sensitivity MODEL -o FILE.",
            )
        settings["mask"] = str(mask)
    key = {"model": digest, "arm": [arm.method, settings], "compiler": compiler_digest()}
    bundle = work / f"{arm.method}-{name_of(key)}"
    try:
        Bundle.open(bundle)
    except BundleError:  # not there, or damaged
        progress(f"compiling {arm.label}", None)
        compile_apart(bundle, model, arm.method, TARGET, settings)
    return bundle


def _read(figures: Path) -> dict[str, Any]:
    """What an earlier call wrote; nothing where there is none."""
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(figures.read_text(encoding="utf-8"))
        return found
    return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Held-out loss after training, side by side.")
    parser.add_argument("name", choices=sorted(COMPARISONS))
    add_places(parser, RESULTS)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--mask", type=Path, help="of the weights that are trained")
    parser.add_argument("--task", choices=sorted(samples.TASKS), default="films")
    parser.add_argument("--minutes", type=float, help="after which no further run begins")
    chosen = parser.parse_args(arguments)

    more = f" --mask {chosen.mask.name}" if chosen.mask else ""
    name = chosen.name
    if chosen.task != "films":
        more += f" --task {chosen.task}"
        name += f"-{chosen.task}"

    def measured(clock: Clock) -> None:
        marked(chosen.page, page.mark_of(name))
        work = cache_dir() / "bench" / "learning"
        work.mkdir(parents=True, exist_ok=True)
        measure(
            dataclasses.replace(COMPARISONS[chosen.name], task=chosen.task),
            chosen.model,
            samples.sentences(task=chosen.task),
            mask=chosen.mask,
            command=f"python -m research.learning.measure {chosen.name} {chosen.page}{more}",
            work=work,
            known=_read(chosen.results / f"{name}.json"),
            may_begin=lambda: clock.within(chosen.minutes),
            write=lambda result: page.write(chosen.page, chosen.results, name, result),
            progress=clock,
        )

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main())
