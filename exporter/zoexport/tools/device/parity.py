"""A phone against this machine, on the same bundle, examples and seed.

``zoexport parity`` compares this machine's session with the method's reference; here the phone is compared with it. The
phone uses the bundle's own engine, or the one that the user chose. This machine uses the CPU, in float32: the bundle's
fallback if it has one.

* Zeroth order: this machine takes each step from the phone's own state, which its log gives to the last bit, so that
  losses are compared at one state. And the phone's slots must be those that its log gives here, bit for bit: that is
  the noise and the updates.
* First order: records do not have the state. Both run freely, and losses and final slots are compared.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

from zoexport.core import tolerances
from zoexport.core.adb import Phone, choose_phone
from zoexport.core.progress import Progress
from zoexport.methods import config_of
from zoexport.session import Bundle, Dataset, Session
from zoexport.tools.device.runs import Place, push, run_there

_LABELS = 256
"""Labels of a step, where losses differ by roundings (core.tolerances)."""
_RUN = "parity"


def device_parity(
    bundle: Bundle, *, steps: int, serial: str | None, runner: Path | None, progress: Progress
) -> dict[str, Any]:
    """Train ``steps`` steps on a phone and on this machine, and compare.

    Args:
        bundle: bundle with programs that also run here.
        steps: number of steps.
        serial: serial number of the phone, if several are connected.
        runner: see :func:`zoexport.tools.device.push`.

    Returns:
        The keys of ``device parity --json``. A failed comparison is not an error.

    Raises:
        ZoExportError: the bundle, the runner or the phone cannot be used.
    """
    from zoexport.compiler.parity_batches import make_batch
    from zoexport.data.examples import write_examples

    settings = bundle.settings
    least = 0
    config = config_of(bundle.manifest)
    if tolerances.rounds(config):
        settings["loss"], least = "full", _LABELS
    vocabulary = bundle.manifest["model"]["vocab_size"]
    batches = [make_batch(settings, vocabulary, step, least) for step in range(steps)]
    size = max(map(len, batches))
    chosen = {"loss": settings["loss"], "batch_size": size, "gradient_accumulation_steps": 1}
    there = bundle.engine or bundle.manifest["engine"]
    last = bundle.manifest
    while "fallback" in last:
        last = last["fallback"]
    here = last["engine"]
    place = Place(bundle, _RUN)
    pushed = push(bundle, serial=serial, runner=runner, app=False, progress=progress)
    phone = choose_phone(pushed["serial"])
    with tempfile.TemporaryDirectory(prefix="zoexport-") as name:
        folder = Path(name)
        examples = folder / "examples.jsonl"
        write_examples([example for batch in batches for example in batch], examples)
        # A run of an earlier comparison would be gone on with.
        phone.shell("rm", "-rf", place.run)
        phone.push(examples, place.examples)
        progress("training on the phone", None)
        answer = run_there(phone, place, steps, chosen, lambda _: None, ["--engine", there])
        (folder / "phone").mkdir()
        phone.pull(place.state, folder / "phone")
        progress("training here", None)
        bundle = dataclasses.replace(bundle, engine=here)
        with Dataset() as dataset:
            dataset.load(examples)
            compared = _compare(bundle, folder, dataset, steps, chosen)
    bounds = tolerances.bounds(config)
    passed = compared["max_relative_loss_error"] <= bounds[tolerances.LOSS]
    if compared["same_bits"] is None:
        passed &= compared["max_relative_state_error"] <= bounds[tolerances.STATE]
    else:
        passed &= compared["same_bits"]
    return {
        "passed": bool(passed),
        "steps": steps,
        **compared,
        "bounds": {key: bounds[key] for key in (tolerances.LOSS, tolerances.STATE)},
        "serial": phone.serial,
        "phone": _described(phone),
        "step_seconds_median": answer["step_seconds_median"],
        "peak_anonymous_mb": answer["peak_anonymous_mb"],
        "peak_rss_mb": answer["peak_rss_mb"],
    }


def _described(phone: Phone) -> str:
    model = phone.shell("getprop", "ro.product.model").strip()
    release = phone.shell("getprop", "ro.build.version.release").strip()
    return f"{model}, Android {release}, {phone.abi()}"


def _compare(
    bundle: Bundle, folder: Path, dataset: Dataset, steps: int, chosen: dict[str, Any]
) -> dict[str, Any]:
    import numpy as np

    from zoexport.compiler.parity import state_error

    with bundle.session() as there:
        there.attach(folder / "phone", read_only=True)
        losses = [there.record(step).loss for step in range(steps)]
        gradients = [there.record(step).gradients for step in range(steps)]
        if not there.info.num_queries:
            return _free(bundle, folder, dataset, losses, chosen, there)
        same = all(
            there.read_slot(slot.name) == there.replay_slot(slot.name, steps)
            for slot in there.slots()
            if slot.role == "trainable"
        )
        queries = there.info.num_queries
    worst = 0.0
    pairs: list[tuple[float, float]] = []
    for step in range(steps):
        state = _cut(folder / "phone", folder / f"step-{step}", step, queries)
        with bundle.session(verify=False) as here:
            here.attach(state)
            # Schedules span the whole run; this is a single step of it.
            here.configure(**chosen)
            here.train(dataset, step + 1)
            worst = max(worst, _error(here.record(step).loss, losses[step]))
            pairs += zip(here.record(step).gradients, gradients[step], strict=True)
        shutil.rmtree(state)
    mine, phones = ({"gradients": np.array(side)} for side in zip(*pairs, strict=True))
    return {
        "max_relative_loss_error": worst,
        "max_relative_state_error": None,
        "relative_gradient_error": state_error(phones, mine),
        "signs": {
            "same": sum((ours > 0) == (theirs > 0) for ours, theirs in pairs),
            "of": len(pairs),
        },
        "same_bits": same,
    }


def _cut(state: Path, target: Path, steps: int, queries: int) -> Path:
    """A copy of a state as it was after ``steps`` steps: the log has a header of 64 bytes and 20 + 4q a record."""
    target.mkdir()
    shutil.copy(state / "state.json", target)
    log = (state / "trajectory.log").read_bytes()[: 64 + steps * (20 + 4 * queries)]
    (target / "trajectory.log").write_bytes(log)
    return target


def _free(
    bundle: Bundle,
    folder: Path,
    dataset: Dataset,
    losses: list[float],
    chosen: dict[str, Any],
    there: Session,
) -> dict[str, Any]:
    """Both run freely from the start."""
    import numpy as np

    from zoexport.compiler.parity import state_error

    with bundle.session(verify=False) as here:
        here.attach(folder / "here")
        here.configure(**chosen)
        here.train(dataset, len(losses))
        mine = [here.record(step).loss for step in range(len(losses))]
        slots = [slot.name for slot in here.slots() if slot.role == "trainable"]
        ours, theirs = (
            {name: np.frombuffer(session.read_slot(name), np.float32) for name in slots}
            for session in (there, here)
        )
    return {
        "max_relative_loss_error": max(map(_error, mine, losses)),
        "max_relative_state_error": state_error(ours, theirs),
        "relative_gradient_error": None,
        "signs": None,
        "same_bits": None,
    }


def _error(mine: float, theirs: float) -> float:
    return abs(mine - theirs) / max(abs(mine), 1e-12)
