"""``make report-federated``: federated algorithms at equal planned operations, on the same sentences and clients.

``python -m research.federated.measure PAGE --study NAME`` runs every arm of one of :data:`STUDIES` with every rate and
seed, for as many rounds as the budget of operations pays for. Sentences that no client has choose an arm's rate, others
are what is compared. Bundles, federations and results are kept in the cache folder, so the same command goes on where
it was stopped. ``page`` writes the page's marked part, its tables and the raw runs.

Clients are called in this process one after another (``federated.local``): the same code and messages as over Flower,
whose engine would add its start to every run. Nothing that is reported is a time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.federated import page
from research.support import arms
from research.support.cells import Cells, name_of
from research.support.command import Clock, add_places, exit_status
from research.support.page import marked
from research.support.tables import RAW
from research.support.trained import Divided, divided
from zoexport import models as language_models
from zoexport.compiler.digest import compiler_digest
from zoexport.core.errors import BundleError, StateError
from zoexport.core.fetch import cache_dir
from zoexport.core.progress import Progress
from zoexport.data import samples
from zoexport.federated import shards
from zoexport.federated.client import Client
from zoexport.federated.coordinator import Coordinator, Patience
from zoexport.federated.cost import flops_per_step
from zoexport.federated.evaluation import Evaluator
from zoexport.federated.local import LocalTransport
from zoexport.federated.models import Model, initial
from zoexport.federated.settings import terms_of
from zoexport.federated.store import Store
from zoexport.session import Bundle, Dataset
from zoexport.tools.bench import conditions
from zoexport.tools.bench.bundles import compile_apart

MODEL = "smollm2-135m"
TARGET = "host"
RESULTS = RAW / "federated"
COMMON = {"loss": "choices", "max_length": "64", "batch_size": "4", "activations": "fp32"}


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is compared: a bundle's method and settings, and what its federation does."""

    label: str
    method: str
    settings: Mapping[str, str]
    algorithm: str
    rates: tuple[float, ...]
    changes: Mapping[str, str] = dataclasses.field(default_factory=dict)


_ADAPTERS = (2e-3, 5e-3, 1e-2, 2e-2)
_INT4 = {"weights": "int4"}
_P2 = {**_INT4, "granularity": "layer", "num_queries": "2"}
_WEIGHTS = (1e-6, 3e-6, 1e-5, 3e-5)


@dataclasses.dataclass(frozen=True)
class Study:
    """Arms of one federation. ``measure``: the one whose rounds' operations are every arm's budget."""

    arms: tuple[Arm, ...]
    measure: str


def _split_weights(perturbations: str) -> Arm:
    one = arms.split(perturbations, _WEIGHTS)
    return Arm(f"FedSPZO, P = {perturbations}", one.method, one.settings, "replay", one.rates)


def _whole_weights(queries: int) -> Arm:
    one = arms.unsplit(queries, _WEIGHTS)
    return Arm(one.label, one.method, one.settings, "replay", one.rates)


STUDIES = {
    "adapters": Study(
        (
            Arm(
                "FedSPZO",
                "spzo",
                {**_INT4, "split": "layer:25", "perturbations": "2,2"},
                "replay",
                _ADAPTERS,
            ),
            Arm("unsplit, P = 2", "mezo", _P2, "replay", _ADAPTERS),
            Arm("unsplit, P = 4", "mezo", {**_P2, "num_queries": "4"}, "replay", _ADAPTERS),
            Arm("DeComFL", "mezo", _P2, "decomfl", _ADAPTERS),
            Arm(
                "DeComFL's aggregation, central differences",
                "mezo",
                _P2,
                "decomfl",
                _ADAPTERS,
                {"difference": "central"},
            ),
            Arm("FedZO", "mezo", _P2, "fedzo", _ADAPTERS),
            Arm("FedAvg, LoRA", "mebp", _INT4, "fedavg", (3e-4, 1e-3, 3e-3)),
        ),
        measure="unsplit, P = 2",
    ),
    # The paper's own form: all weights, and the head as second block (section 4.1).
    "weights": Study(
        (
            *map(_split_weights, ("1,4", "2,2", "2,4")),
            *map(_whole_weights, (1, 2, 4)),
        ),
        measure="unsplit, P = 2",
    ),
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is done.

    Attributes:
        clients, sample, steps: of a federation. rounds: that the arm ``Study.measure`` has.
        split: how data are dealt to clients, see ``federated.shards``.
        seeds: of data, noise and clients.
        validated: examples that choose an arm's rate, which no client has. tested: that arms are compared by; both
            every ``evaluated`` rounds, and at the end.
        labels: tokens of a batch that are predicted; the sentences' choices are one token each.
        target: the held-out loss to which operations are counted.
    """

    clients: int = 20
    sample: int = 4
    steps: int = 5
    rounds: int = 12
    split: str = shards.IID
    seeds: tuple[int, ...] = (0, 1, 2)
    validated: int = 200
    tested: int = 500
    labels: int = 8
    evaluated: int = 4
    target: float = 0.6


def measure(
    scale: Scale,
    study: Study,
    model: str,
    data: samples.Samples,
    *,
    command: str,
    work: Path,
    may_begin: Callable[[], bool],
    write: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Run every arm; what an earlier call did is not done again.

    Args:
        model: a MODEL argument.
        command: that measures this, for the page.
        work: where bundles, federations and results are kept.
        may_begin: asked before each run; what it refuses is left out.
        write: called with the result after each run.
        progress: called with what is being done, and how much of that is done.

    Raises:
        ZoExportError: something cannot be compiled or trained.
    """
    source = language_models.resolve(model)
    digest = language_models.fingerprint(source)
    files = divided(data, scale.validated, scale.tested, work)
    cells = Cells(work / "runs")
    runs = [_Run(arm, scale, source.argument, digest, files, work, progress) for arm in study.arms]
    budget = (
        next(run.flops_of_round for run in runs if run.arm.label == study.measure) * scale.rounds
    )
    result: dict[str, Any] = {
        "arms": [
            {"label": run.arm.label, "rounds": run.rounds(budget), "runs": [], **run.about()}
            for run in runs
        ],
        "conditions": {
            "command": command,
            "model": {"name": source.name, "sha256": digest},
            "date": datetime.date.today().isoformat(),
            "common": COMMON,
            "scale": dataclasses.asdict(scale),
            "budget_flops": budget,
            **conditions.machine(),
        },
    }
    # A seed of everything before the next, so that what was stopped compares what it has.
    for seed in scale.seeds:
        for place in range(max(len(run.arm.rates) for run in runs)):
            for run, entry in zip(runs, result["arms"], strict=True):
                for rate in run.arm.rates[place : place + 1]:
                    if not may_begin() and not run.is_kept(rate, seed, run.rounds(budget)):
                        continue
                    done = functools.partial(run.run, rate, seed, run.rounds(budget))
                    key = run.key(rate, seed, run.rounds(budget))
                    entry["runs"].append(run.counted(cells.get("run", key, done)))
                    write(result)


class _Run:
    """An arm's federations over one bundle."""

    def __init__(
        self,
        arm: Arm,
        scale: Scale,
        model: str,
        digest: str,
        files: Divided,
        work: Path,
        progress: Progress,
    ) -> None:
        self.arm, self._scale, self._files = arm, scale, files
        self._work, self._progress = work, progress
        settings = {**COMMON, **arm.settings}
        key = {"model": digest, "arm": [arm.method, settings], "compiler": compiler_digest()}
        folder = work / f"{arm.method}-{name_of(key)}"
        try:
            self.bundle = Bundle.open(folder)
        except BundleError:  # not there, or damaged
            progress(f"compiling {arm.label}", None)
            compile_apart(folder, model, arm.method, TARGET, settings)
            self.bundle = Bundle.open(folder)
        terms = self._terms(arm.rates[0], 0)
        self._cells = Cells(work / "runs")
        flops = self._cells.get(
            "flops",
            {
                "bundle": self.bundle.id,
                "difference": terms.difference,
                "labels": scale.labels,
            },
            lambda: {"flops": flops_per_step(self.bundle.manifest, terms, scale.labels)},
        )["flops"]
        if flops is None:
            raise StateError(
                f"bundle {self.bundle}",
                found="no count of its operations",
                expected="the model it was compiled from, to plan with",
                fix="Fetch the model again.",
            )
        self.flops_of_round: int = flops * scale.steps * scale.sample

    def rounds(self, budget: int) -> int:
        """As many as the budget pays for."""
        return max(1, round(budget / self.flops_of_round))

    def about(self) -> dict[str, Any]:
        """What the page says of the arm."""
        return {
            "method": self.arm.method,
            "settings": dict(self.arm.settings),
            "algorithm": self.arm.algorithm,
            "flops_of_round": self.flops_of_round,
        }

    def key(self, rate: float, seed: int, rounds: int) -> dict[str, Any]:
        """What decides a run's result."""
        scale = self._scale
        return {
            "terms": self._terms(rate, seed).as_dict(),
            "rounds": rounds,
            "scale": [scale.clients, scale.sample, scale.split, scale.evaluated],
            "data": self._files.digests(),
        }

    def is_kept(self, rate: float, seed: int, rounds: int) -> bool:
        """Whether an earlier call did this run."""
        return self._cells.kept("run", self.key(rate, seed, rounds)) is not None

    def run(self, rate: float, seed: int, rounds: int) -> dict[str, Any]:
        """``rate``, ``seed``, ``points`` (of versions: rounds, bytes up, what is held out) and totals."""
        folder = self._work / f"federation-{name_of(self.key(rate, seed, rounds))}"
        folder.mkdir(parents=True, exist_ok=True)
        terms = self._terms(rate, seed)
        self._write_shards(folder, seed)
        clients = {number: self._client(folder, number) for number in range(self._scale.clients)}
        label = f"{self.arm.label}, rate {rate:g}, seed {seed}"
        diverged = None
        with (
            Store.opened(folder / "server", terms, self._scale.sample, self.bundle.path) as store,
            self._evaluators(terms.loss) as evaluate,
        ):
            points = [{"rounds": 0, "bytes_up": 0, **self._untrained(evaluate)}]

            def sometimes(model: Model) -> dict[str, Any]:
                ended = store.version() + 1
                due = ended % self._scale.evaluated == 0 or ended == rounds
                return evaluate(model) if due else {}

            try:
                Coordinator(
                    store,
                    self.bundle,
                    LocalTransport(clients),
                    patience=Patience(),
                    evaluate=sometimes,
                    report=lambda one: self._progress(label, (one["round"] + 1) / rounds),
                ).run(rounds)
            except StateError as error:  # too few clients' runs stayed in range
                diverged = str(error)
            found = [{**store.round(one), **store.notes(one)} for one in range(store.version())]
        up = 0
        for content in found:
            up += content["bytes_up"]
            if "evaluation" in content:
                done = {"rounds": content["round"] + 1, "bytes_up": up}
                points.append({**done, **content["evaluation"]})
        shutil.rmtree(folder, ignore_errors=True)
        down = sum(one["bytes_down"] + one.get("sync_bytes_down", 0) for one in found)
        return {
            "rate": rate,
            "seed": seed,
            "points": points,
            "upload_largest": max((max(one["uploads"]) for one in found), default=0),
            "bytes_down": down,
            "diverged": diverged,
        }

    def counted(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """A run whose points have their operations, which a kept run does not: how they are counted may change."""
        points = [
            {"flops": point["rounds"] * self.flops_of_round, **point} for point in found["points"]
        ]
        return {**found, "points": points}

    def _untrained(self, evaluate: Callable[[Model], dict[str, Any]]) -> dict[str, Any]:
        return self._cells.get(
            "untrained",
            {"bundle": self.bundle.id, "data": self._files.digests()},
            lambda: evaluate(initial(self.bundle))["evaluation"],
        )

    @contextlib.contextmanager
    def _evaluators(self, loss: str) -> Iterator[Callable[[Model], dict[str, Any]]]:
        """Of a version ``evaluation``: ``loss`` and ``accuracy`` of the test, and ``validation``, the other's loss."""

        def read(path: Path) -> Any:
            return self.bundle.examples(path, loss=loss, progress=lambda *_: None)

        with (
            self.bundle.session() as session,
            read(self._files.validation) as (validation, _),
            read(self._files.test) as (test, _),
        ):
            session.configure(loss=loss)
            of_validation, of_test = (Evaluator(session, one) for one in (validation, test))

            def evaluate(model: Model) -> dict[str, Any]:
                other = of_validation(model)["evaluation"]["loss"]
                return {"evaluation": {**of_test(model)["evaluation"], "validation": other}}

            yield evaluate

    def _terms(self, rate: float, seed: int) -> Any:
        settings = {**self.arm.changes, "learning_rate": repr(rate), "seed": str(seed)}
        return terms_of(self.bundle, self.arm.algorithm, self._scale.steps, settings)

    def _write_shards(self, folder: Path, seed: int) -> None:
        tokens = folder / "tokens.jsonl"
        self.bundle.write_tokens(self._files.train, tokens, loss="choices")
        scale = self._scale
        dealt = shards.divided(self._files.train, scale.clients, scale.split, seed)
        shards.write(tokens, dealt, folder / "shards")

    def _client(self, folder: Path, number: int) -> Client:
        def examples(client: int, loss: str) -> Dataset:
            dataset = Dataset()
            dataset.load(folder / "shards" / f"{client}.jsonl")
            return dataset

        return Client(self.bundle, examples, folder / "clients" / str(number))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Federated algorithms at equal operations.")
    add_places(parser, RESULTS)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--study", choices=sorted(STUDIES), default="adapters")
    parser.add_argument("--split", default=Scale.split, help="iid, or labels:ALPHA")
    parser.add_argument("--rounds", type=int, default=Scale.rounds)
    parser.add_argument("--minutes", type=float, help="after which no further run begins")
    chosen = parser.parse_args(arguments)
    scale = Scale(rounds=chosen.rounds, split=chosen.split)
    name = chosen.study if scale.split == Scale.split else f"{chosen.study}-labels"

    def measured(clock: Clock) -> None:
        marked(chosen.page, page.mark_of(name))
        work = cache_dir() / "bench" / "federated"
        work.mkdir(parents=True, exist_ok=True)
        measure(
            scale,
            STUDIES[chosen.study],
            chosen.model,
            samples.sentences(),
            command=f"python -m research.federated.measure {chosen.page} --study {chosen.study} "
            f"--split {chosen.split} --rounds {chosen.rounds}",
            work=work,
            may_begin=lambda: clock.within(chosen.minutes),
            write=lambda result: page.write(chosen.page, chosen.results, name, result),
            progress=clock,
        )

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
