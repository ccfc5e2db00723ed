"""One run for a report: a bundle trained on some examples, and evaluated on others."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from zoexport.api import Bundle
from zoexport.core.errors import DivergedError
from zoexport.core.files import atomic_file, sha256
from zoexport.core.progress import Progress
from zoexport.data.samples import Samples
from zoexport.session import StepProgress


def trained(
    bundle: Path,
    state: Path,
    data: Path,
    test: Path,
    *,
    rate: float,
    steps: int,
    seed: int,
    label: str,
    progress: Progress,
    settings: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Train until the state has ``steps`` steps, and evaluate it.

    Args:
        data, test: examples with choices, as JSON Lines.
        rate: the learning rate. seed: of noise and order.
        label: what ``progress`` gets beside the loss.
        settings: others of ``train --set``.

    Returns:
        ``rate``, ``steps``, ``seconds_per_step`` (the median), ``loss`` and ``accuracy``; the last three None where the
        run diverged.
    """

    def after(step: StepProgress) -> None:
        progress(f"{label}, loss {step.loss:.3f}", step.step / steps)

    result: dict[str, Any] = {"rate": rate, "steps": steps}
    try:
        report = Bundle.open(bundle).train(
            data,
            state=state,
            steps=steps,
            settings={**(settings or {}), "learning_rate": repr(rate), "seed": str(seed)},
            progress=after,
        )
    except DivergedError:
        return {**result, "loss": None, "accuracy": None, "seconds_per_step": None}
    result["seconds_per_step"] = report.step_seconds_median
    return result | evaluated(bundle, state, test, progress)


def evaluated(bundle: Path, state: Path | None, test: Path, progress: Progress) -> dict[str, Any]:
    """``loss`` and ``accuracy`` of a state, or of the bundle as compiled."""
    progress("evaluating", None)
    found = Bundle.open(bundle).evaluate(test, state=state)
    return {"loss": found.loss, "accuracy": found.accuracy}


@dataclasses.dataclass(frozen=True)
class Divided:
    """Files of examples: to train on, to choose a rate by, and to compare by."""

    train: Path
    validation: Path
    test: Path

    def digests(self) -> list[str]:
        """What decides a result."""
        return [sha256(path) for path in (self.train, self.validation, self.test)]


def divided(data: Samples, validated: int, tested: int, work: Path) -> Divided:
    """The last ``validated`` lines of what is trained on apart, and the first ``tested`` ones of the test."""
    lines = data.train.read_text(encoding="utf-8").splitlines(keepends=True)
    parts = {"train": lines[:-validated], "validation": lines[-validated:]}
    files = {}
    for name, part in parts.items():
        files[name] = work / f"{name}-{len(part)}.jsonl"
        with atomic_file(files[name]) as temporary:
            temporary.write_text("".join(part), encoding="utf-8")
    return Divided(**files, test=first_lines(data.test, tested, work))


def first_lines(path: Path, count: int, work: Path) -> Path:
    """A file of the first lines of another, in the folder ``work``."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:count]
    output = work / f"held-out-{count}.jsonl"
    with atomic_file(output) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
    return output
