"""Accuracy after SensZOQ has trained by a mask: static masks by kind, density and rate, and masks chosen anew."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from research.support.cells import Cells, name_of
from research.support.trained import evaluated, first_lines, trained
from zoexport import models
from zoexport.api import Bundle
from zoexport.compiler.digest import compiler_digest
from zoexport.core.errors import BundleError
from zoexport.core.files import sha256
from zoexport.core.mask import write_mask
from zoexport.core.progress import Progress
from zoexport.tools.bench.bundles import compile_apart
from zoexport.tools.mask_choice import MaskConfig
from zoexport.tools.sensitivity import choose_mask

ORDER = ("corpus", "random", "task", "smallest", "largest", "grasp")
"""The order of the masks; what matters most is trained first."""
DYNAMIC = ("task", "random")
"""The masks that are also chosen anew during training (figure 6b)."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        steps: of a run. phases: of a dynamic one, which chooses a mask at the beginning of each.
        promises: a run's rate is one of these over the share of the squared norm that its mask covers: by how much a
            step lowers the loss is about rate * ||m * g||^2, so every mask is given the same. Masks that cover little
            get large rates, as the paper's table 9 has them.
        evaluated: held-out examples, from the beginning of their file.
        densities: the most important first; dynamic masks have the first one only.
    """

    steps: int = 400
    phases: int = 4
    promises: tuple[float, ...] = (5e-5, 1.5e-4)
    evaluated: int = 600
    densities: tuple[float, ...] = (1e-3, 1e-2, 1e-4)
    batch_size: int = 4
    num_queries: int = 4
    max_length: int = 64
    weights: str = "int4"
    sequences: int = 64
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """One mask to train by."""

    mask: str
    density: float
    dynamic: bool = False


def cases(plan: Plan) -> Iterator[Case]:
    """The cases of a plan, in the order in which they are run."""
    for number, density in enumerate(plan.densities):
        yield from (Case(mask, density) for mask in ORDER)
        if number == 0:
            yield from (Case(mask, density, dynamic=True) for mask in DYNAMIC)


def rate_of(promise: float, share: float) -> float:
    """``promise / share`` to one significant digit."""
    return float(f"{promise / share:.0e}")


class Trainings:
    """Runs of one model; a run that is done is kept as a cell.

    Args:
        model: a MODEL argument. model_sha256: of its weights.
        train_data, test_data: examples with choices, as JSON Lines.
        mask_file: the file of a mask and density.
        share: of the task's squared norm that a mask of a density covers before training.
        work: where cells, bundles and states are kept; bundles and states go when their cells are done.
        progress: called with what is being done, and how much of that is done.
    """

    def __init__(
        self,
        model: str,
        model_sha256: str,
        train_data: Path,
        test_data: Path,
        plan: Plan,
        *,
        mask_file: Callable[[str, float], Path],
        share: Callable[[str, float], float],
        work: Path,
        progress: Progress,
    ) -> None:
        self._model, self._plan, self._mask_file, self._share = model, plan, mask_file, share
        self._train, self._test = train_data, first_lines(test_data, plan.evaluated, work)
        self._work, self._progress = work, progress
        self._cells = Cells(work / "trained")
        chosen = dataclasses.asdict(plan)
        for ours in ("promises", "densities", "phases", "sequences"):
            del chosen[ours]
        self._key = {
            "model": model_sha256,
            "plan": chosen,
            "data": [sha256(self._train), sha256(self._test)],
            "compiler": compiler_digest(),
        }

    def run(self, case: Case, *, may_begin: Callable[[], bool]) -> dict[str, Any] | None:
        """A case's evaluations, trained now where they are not kept.

        Args:
            may_begin: asked before each run; what it refuses is left out.

        Returns:
            ``mask``, ``density``, ``dynamic``, ``untrained`` (loss and accuracy) and ``runs``: of each ``rate``,
            ``steps``, ``loss`` and ``accuracy``, both None where it diverged. None where there is no run.
        """
        key = self._key | {"mask": sha256(self._mask_file(case.mask, case.density))}
        runs = self._dynamic(case, key, may_begin) if case.dynamic else None
        if runs is None and not case.dynamic:
            runs = self._static(case, key, may_begin)
        untrained = self._cells.kept("untrained", key)
        if not runs or untrained is None:
            return None
        return {**dataclasses.asdict(case), "untrained": untrained, "runs": runs}

    def rates(self, case: Case) -> list[float]:
        """The rate of each promise at the case's share of trained weights."""
        share = self._share(case.mask, case.density)
        return [rate_of(promise, share) for promise in self._plan.promises]

    def _static(
        self, case: Case, key: Mapping[str, Any], may_begin: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        runs = []
        folder = self._work / f"static-{name_of(key)}"
        bundle = _Once(lambda: self._bundle(folder / "bundle", self._model, case))
        complete = True

        def of_rate(state: Path, rate: float, label: str) -> dict[str, Any]:
            plan = self._plan
            return self._trained(bundle(), state, rate, plan.steps, plan.seed, label)

        for rate in self.rates(case):
            of_run = {**key, "rate": rate}
            kept = self._cells.kept("static", of_run)
            if kept is None and not may_begin():
                complete = False
                continue
            self._cells.get(
                "untrained", key, lambda: evaluated(bundle(), None, self._test, self._progress)
            )
            state = folder / f"state-{rate:g}"
            label = f"{case.mask} {case.density:g}, rate {rate:g}"
            runs.append(
                self._cells.get(
                    "static",
                    of_run,
                    functools.partial(of_rate, state, rate, label),
                )
            )
        if complete:
            shutil.rmtree(folder, ignore_errors=True)
        return runs

    def _dynamic(
        self, case: Case, key: Mapping[str, Any], may_begin: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        """At the rate at which the static mask was best, which has been run before."""
        kept = [self._cells.kept("static", {**key, "rate": rate}) for rate in self.rates(case)]
        done = [run for run in kept if run is not None]
        if len(done) < len(kept):
            return []
        rate = best(done)["rate"]
        plan = self._plan
        of_run = {**key, "rate": rate, "phases": plan.phases, "sequences": plan.sequences}
        if self._cells.kept("dynamic", of_run) is None and not may_begin():
            return []
        return [self._cells.get("dynamic", of_run, lambda: self._by_phases(case, rate))]

    def _by_phases(self, case: Case, rate: float) -> dict[str, Any]:
        folder = self._work / f"dynamic-{case.mask}-{case.density:g}"
        shutil.rmtree(folder, ignore_errors=True)
        model, ends = self._model, _ends(self._plan.steps, self._plan.phases)
        result: dict[str, Any] = {}
        for phase, (begin, end) in enumerate(itertools.pairwise([0, *ends])):
            here = folder / str(phase)
            mask = self._mask_file(case.mask, case.density)
            if phase:
                mask = here / "chosen.mask"
                self._choose(model, case, self._plan.seed + phase, mask)
            bundle = self._bundle(here / "bundle", model, case, mask)
            label = f"{case.mask} {case.density:g} dynamic, phase {phase + 1} of {len(ends)}"
            seed = self._plan.seed + phase
            result = self._trained(bundle, here / "state", rate, end - begin, seed, label)
            if result["accuracy"] is None:
                break
            if end < self._plan.steps:
                merged = here / "merged"
                Bundle.open(bundle).export_adapter(
                    merged, state=here / "state", format="hf", force=True
                )
                model = str(merged)
        shutil.rmtree(folder, ignore_errors=True)
        return {**result, "steps": self._plan.steps, "phases": len(ends)}

    def _choose(self, model: str, case: Case, seed: int, path: Path) -> None:
        """A new mask, of the task's gradients or at random."""
        reads = case.mask == "task"
        config = MaskConfig(
            kind="sensitive" if reads else case.mask,
            density=case.density,
            sequences=self._plan.sequences,
            seed=seed,
        )
        loaded = models.load(models.resolve(model), lazy=not reads)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self._train if reads else None
        mask, _ = choose_mask(loaded, data, config, path.parent, progress=self._progress)
        write_mask(path, mask)

    def _bundle(self, bundle: Path, model: str, case: Case, mask: Path | None = None) -> Path:
        plan = self._plan
        try:
            Bundle.open(bundle)
            return bundle
        except BundleError:  # not there, or damaged
            pass
        self._progress(f"compiling for {case.mask} {case.density:g}", None)
        settings = {
            "mask": str(mask or self._mask_file(case.mask, case.density)),
            "loss": "choices",
            "max_length": str(plan.max_length),
            "batch_size": str(plan.batch_size),
            "num_queries": str(plan.num_queries),
            "weights": plan.weights,
        }
        compile_apart(bundle, model, "senszoq", "host", settings)
        return bundle

    def _trained(
        self, bundle: Path, state: Path, rate: float, steps: int, seed: int, label: str
    ) -> dict[str, Any]:
        return trained(
            bundle,
            state,
            self._train,
            self._test,
            rate=rate,
            steps=steps,
            seed=seed,
            label=label,
            progress=self._progress,
        )


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the highest held-out accuracy, the lowest loss of equal ones; one that diverged is the worst."""
    return max(runs, key=lambda run: (run["accuracy"] or 0.0, -(run["loss"] or float("inf"))))


class _Once:
    """A value that is made at the first call."""

    def __init__(self, make: Callable[[], Path]) -> None:
        self._make = make
        self._value: Path | None = None

    def __call__(self) -> Path:
        if self._value is None:
            self._value = self._make()
        return self._value


def _ends(steps: int, phases: int) -> list[int]:
    """Where the phases end; as many as there are steps for."""
    count = min(steps, phases)
    return [steps * (phase + 1) // count for phase in range(count)]
