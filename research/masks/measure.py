"""``make report-masks``: what masks cover of squared gradients, and how well SensZOQ trains by them.

``python -m research.masks.measure PAGE`` takes squared gradients of the corpus, of held-out text and of a task,
before and after fine-tuning the model a little (``gradients``), sums them over the masks (``coverage``), and
trains by the masks (``training``). All of it is kept in the cache folder, so the same command goes on where it was
stopped.
``page`` writes the page's marked part, its tables and the raw runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from research.masks import page
from research.masks.gradients import Gradients, Sizes
from research.masks.training import Plan, Trainings, cases
from research.support.command import Clock, add_places, exit_status
from research.support.page import marked
from research.support.tables import RAW
from zoexport import models
from zoexport.core.cores import usable_cores
from zoexport.core.errors import ConfigError
from zoexport.core.fetch import cache_dir
from zoexport.core.progress import Progress
from zoexport.data import corpus, samples
from zoexport.tools.bench import conditions

MODEL = "smollm2-135m"
RESULTS = RAW / "masks"


def scaled(sizes: Sizes, plan: Plan, share: float) -> tuple[Sizes, Plan]:
    """A share of the sequences, steps and held-out examples, of these 100 at least."""

    def part(count: int, least: int = 1) -> int:
        return max(least, round(count * share))

    return (
        dataclasses.replace(
            sizes,
            sequences=part(sizes.sequences, 2),
            task_sequences=part(sizes.task_sequences, 2),
            grasp_sequences=part(sizes.grasp_sequences),
            tuning_steps=part(sizes.tuning_steps),
        ),
        dataclasses.replace(
            plan,
            steps=part(plan.steps),
            evaluated=part(plan.evaluated, 100),
            sequences=part(plan.sequences, 2),
        ),
    )


def measure(
    model: str,
    texts: Mapping[str, Path],
    sizes: Sizes,
    plan: Plan,
    *,
    command: str,
    work: Path,
    may_begin: Callable[[], bool],
    write: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Measure everything; what an earlier call did is not done again.

    Args:
        model: a MODEL argument.
        texts: the files of ``mask_gradients.TEXTS``; the tasks' have choices.
        command: that measures this, for the page.
        work: where squares, masks and results are kept.
        may_begin: asked before each training run; what it refuses is left out.
        write: called with the result when the gradients are done, and again after each mask that was trained by.
        progress: called with what is being done, and how much of that is done.

    Raises:
        ZoExportError: the model or a text cannot be used, or something cannot be compiled.
    """
    load = conditions.load_average()
    gradients = Gradients(model, texts, sizes, work, progress)
    source, found = gradients.source, gradients.result()
    trained: list[dict[str, Any]] = []
    result = {
        **found,
        "trained": trained,
        "conditions": {
            "command": command,
            "model": {"name": source.name, "sha256": gradients.sha256},
            "date": datetime.date.today().isoformat(),
            "sizes": dataclasses.asdict(sizes),
            "plan": dataclasses.asdict(plan),
            "load_average": [load, conditions.load_average()],
            "threads": usable_cores(),
            **conditions.machine(),
        },
    }
    write(result)

    def share(mask: str, density: float) -> float:
        (shares,) = (
            one["shares"]
            for one in found["coverage"]
            if (one["mask"], one["text"], one["time"]) == (mask, "task", "before")
        )
        return float(shares[sizes.densities.index(density)])

    trainings = Trainings(
        source.argument,
        gradients.sha256,
        texts["task"],
        texts["held-out task"],
        plan,
        mask_file=gradients.mask_file,
        share=share,
        work=work,
        progress=progress,
    )
    for case in cases(plan):
        done = trainings.run(case, may_begin=may_begin)
        if done is not None:
            trained.append(done)
            result["conditions"]["load_average"][1] = conditions.load_average()
            write(result)


def texts_of(max_length: int) -> dict[str, Path]:
    """The Brown corpus and the sentence set, fetched at the first call."""
    text, task = corpus.rows(max_length), samples.sentences()
    return {
        "corpus": text.train,
        "held-out text": text.test,
        "task": task.train,
        "held-out task": task.test,
    }


def command_of(model: str, share: float) -> str:
    """What to type for the same figures."""
    options = [f"--model {model}"] if model != MODEL else []
    options += [f"--share {share:g}"] if share < 1 else []
    return f'make report-masks MASKS_ARGS="{" ".join(options)}"' if options else "make report-masks"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Coverage of masks, and accuracy after training.")
    add_places(parser, RESULTS)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of sequences and steps, for a short run"
    )
    parser.add_argument(
        "--minutes", type=float, help="after which no further training run begins (default: none)"
    )
    chosen = parser.parse_args(arguments)

    def measured(clock: Clock) -> None:
        if not 0 < chosen.share <= 1:
            raise ConfigError(
                "option --share",
                found=f"{chosen.share:g}",
                expected="above 0 and at most 1",
                fix="Pass 0.02 for a short run.",
            )
        marked(chosen.page, page.MARK)
        models.resolve(chosen.model)
        sizes, plan = scaled(Sizes(), Plan(), chosen.share)
        measure(
            chosen.model,
            texts_of(sizes.max_length),
            sizes,
            plan,
            command=command_of(chosen.model, chosen.share),
            work=cache_dir() / "bench" / "masks",
            may_begin=lambda: clock.within(chosen.minutes),
            write=lambda result: page.write(chosen.page, chosen.results, result),
            progress=clock,
        )

    return exit_status(measured)


if __name__ == "__main__":
    sys.exit(main())
