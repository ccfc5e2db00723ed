"""Runs a case: model, bundle, parity."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.sweep.cases import Case, settings
from zoexport.api import Bundle

PASSED, REFUSED, FAILED = "passed", "refused", "failed"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        status: passed; refused, for a reason that the user reads; or failed.
        detail: why.
        kind: failures of one kind have one text, whatever the sizes in their messages.
        report: parity's, where it ran.
        seconds: that it took.
    """

    status: str
    detail: str = ""
    kind: str = ""
    report: dict[str, Any] | None = None
    seconds: float = 0.0


def execute(case: Case) -> Outcome:
    """Compile the case's model and compare; whatever goes wrong is an outcome."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoexport-sweep-") as scratch:
        outcome = _execute(case, Path(scratch))
    return dataclasses.replace(outcome, seconds=round(time.monotonic() - start, 2))


def _execute(case: Case, scratch: Path) -> Outcome:
    from tests.sweep.models import has_row_of_padding
    from zoexport.compiler.build import compile_bundle
    from zoexport.core.errors import ConfigError

    if has_row_of_padding(case):
        return Outcome(REFUSED, "nothing to compare with", "a row of padding alone")
    try:
        values = {**settings(case), **_of_the_model(case, scratch)}
        compile_bundle(
            str(scratch / "model"),
            method=case.method,
            target=case.target,
            output=scratch / "bundle",
            settings=values,
            recipe=None,
            force=False,
            progress=_silent,
        )
    except ConfigError as refusal:
        return Outcome(REFUSED, str(refusal), _without_sizes(refusal.where))
    except Exception as error:
        return _raised(error, "compile")
    try:
        report = (
            Bundle.open(scratch / "bundle").parity(steps=case.steps, progress=_silent).as_dict()
        )
    except Exception as error:
        return _raised(error, "parity")
    if report["passed"]:
        return Outcome(PASSED, report=report)
    return Outcome(FAILED, _exceeded(report), _kind(report), report)


def _of_the_model(case: Case, scratch: Path) -> dict[str, str]:
    """Write the model; the settings that name parts of it."""
    from tests.support.masks import write_random_mask
    from tests.sweep.models import save

    leaves = save(case, scratch / "model")
    found = {}
    if case.targets is not None:
        _, one, number = case.targets.rpartition("one:")
        found["lora.target_modules"] = leaves[int(number) % len(leaves)] if one else case.targets
    if case.density is not None:
        (scratch / "masks").mkdir()
        path = scratch / "masks" / "mask.safetensors"
        found["mask"] = str(write_random_mask(scratch / "model", path, case.density))
    return found


def _raised(error: Exception, doing: str) -> Outcome:
    """A failure identified by its type and by the last line of ours that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/zoexport/" in frame.filename]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "outside"
    text = "".join(traceback.format_exception(error))
    return Outcome(FAILED, text[-4000:], f"{doing}: {type(error).__name__} in {place}")


def _exceeded(report: dict[str, Any]) -> str:
    errors = {name: value for name, value in report.items() if name.startswith("max_")}
    return f"{errors} with bounds {report['bounds']}"


def _kind(report: dict[str, Any]) -> str:
    """Which of the errors are too large."""
    bounds = report["bounds"]
    large = [
        name
        for name, bound in bounds.items()
        if not (report.get(f"max_relative_{name}_error") or 0.0) <= bound
    ]
    return f"parity: {', '.join(large)}"


def _without_sizes(text: str) -> str:
    return re.sub(r"[\d.]+", "N", text)


def _silent(*_: object) -> None:
    """No progress."""
