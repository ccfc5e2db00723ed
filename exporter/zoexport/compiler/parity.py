"""parity: the bundle in the session against the method's reference in PyTorch, with the same noise.

The two sides are kept together, so that a step shows that step's errors and none that grew from earlier ones: the
reference begins each step at the session's state, with the session's gradients pending or, of a first-order method,
updates with them. Where integers are trained it updates its own with the session's gradients, as these stay equal.
With activations that are rounded a step's losses are over the whole vocabulary, and over labels enough for single
roundings to average out.

Of a zeroth-order method each projected gradient is compared too, as a difference of two losses, beyond what the
bundle's arithmetic resolves (``parity_resolution``): where losses are right to a hundredth, differences may be noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from zoexport.compiler import parity_resolution
from zoexport.compiler.parity_batches import make_batch
from zoexport.compiler.parity_session import Apart, SessionSide, session_side
from zoexport.core import tolerances
from zoexport.core.files import atomic_folder
from zoexport.core.progress import Progress
from zoexport.core.step_plan import differences_of
from zoexport.data.examples import Example
from zoexport.methods import config_of, methods
from zoexport.session import Bundle
from zoexport.trained import kind_of

_LABELS_TO_AVERAGE = 256
"""Labels of a step whose losses differ by roundings."""


@dataclasses.dataclass
class _Comparison:
    """The largest relative errors so far, and how small a difference of losses counts."""

    loss: float = 0.0
    state: float = 0.0
    gradient: float | None = None
    difference: float | None = None
    resolution: float = 0.0

    def add(
        self,
        ours: dict[str, Any],
        theirs: dict[str, Any],
        divisor: Callable[[Sequence[float]], float],
    ) -> None:
        """Compare a step of both sides.

        Args:
            ours, theirs: ``losses``, ``gradients``, and the state ``after``.
            divisor: of a side's losses, by which differences of them make projected gradients.
        """
        for mine, reference in zip(ours["losses"], theirs["losses"], strict=True):
            error = abs(mine - reference) / max(abs(reference), 1e-12)
            self.loss = worse(self.loss, error)
        self.state = worse(self.state, state_error(ours["after"], theirs["after"]))
        if isinstance(theirs["gradients"], dict):
            error = state_error(ours["gradients"], theirs["gradients"])
            self.gradient = worse(self.gradient or 0.0, error)
            return
        own, other = divisor(ours["losses"]), divisor(theirs["losses"])
        for mine, reference in zip(ours["gradients"], theirs["gradients"], strict=True):
            beyond = max(abs(mine * own - reference * other) - self.resolution, 0.0)
            error = beyond / max(abs(reference * other), 1e-12)
            self.difference = worse(self.difference or 0.0, error)

    def within(self, bounds: Mapping[str, float]) -> bool:
        """Whether no error exceeds its bound."""
        return (
            self.loss <= bounds[tolerances.LOSS]
            and self.state <= bounds[tolerances.STATE]
            and (self.gradient or 0.0) <= bounds[tolerances.GRADIENT]
            and (self.difference or 0.0) <= bounds.get(tolerances.DIFFERENCE, math.inf)
        )


def worse(a: float, b: float) -> float:
    """The larger error; one that is not a number is larger than any."""
    return max(math.inf if math.isnan(error) else error for error in (a, b))


def state_error(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """The norm of the difference over the norm of the reference, largest over the tensors."""
    errors = [
        float(np.linalg.norm(_difference(ours[name], reference)))
        / max(float(np.linalg.norm(reference)), 1e-12)
        if reference.any()
        else float(np.linalg.norm(ours[name]))
        for name, reference in theirs.items()
    ]
    return functools.reduce(worse, errors)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    # In float32 where the values are integers, which would wrap.
    return np.asarray(np.subtract(ours, theirs, dtype=np.result_type(ours, theirs, np.float32)))


def parity(
    bundle: Bundle, *, steps: int, model: str | None, dump: Path | None, progress: Progress
) -> dict[str, Any]:
    """See :meth:`zoexport.Bundle.parity`; values are compared by name. The keys of ``parity --json``."""
    bundle.verify()
    manifest = bundle.manifest
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(atomic_folder(dump)) if dump is not None else None
        settings, vocabulary = bundle.settings, manifest["model"]["vocab_size"]
        config = config_of(manifest)
        rounds = tolerances.rounds(config)
        if rounds:
            settings["loss"] = "full"
        reference = load_reference(bundle, model, progress, loss=settings["loss"])
        session = stack.enter_context(session_side(bundle, settings["loss"]))
        first_order = not session.num_queries
        compared = _Comparison()
        divisor = _divisor(manifest)
        arithmetic = None if first_order else tolerances.arithmetic(config)
        gradients: Any = []
        for step in range(steps):
            progress("comparing", step / steps)
            batch = make_batch(settings, vocabulary, step, _LABELS_TO_AVERAGE if rounds else 0)
            if first_order:
                reference.follow(session.tensors())
            else:
                reference.follow(session.tensors(), gradients, settings["learning_rate"])
            ours = session.step(batch)
            gradients = ours["gradients"]
            applied = {"applied": _tensors(gradients)} if first_order else {}
            if arithmetic is None or step >= parity_resolution.STEPS:
                theirs = reference.step(batch, settings["learning_rate"], **applied)
            else:
                with parity_resolution.measured(reference, arithmetic) as measured:
                    theirs = reference.step(batch, settings["learning_rate"])
                compared.resolution = worse(compared.resolution, measured.take(len(batch)))
            theirs = _in_arrays(theirs)
            compared.add(ours, theirs, divisor)
            if folder is not None:
                sides = {
                    "session": (ours, session.noise(step)),
                    "reference": (theirs, _noise(reference, session, step)),
                }
                dump_step(folder, step, batch, sides, settings)
        if not first_order:
            reference.follow(session.tensors(), gradients, settings["learning_rate"])
        compared.state = worse(
            compared.state, state_error(session.state(), _arrays(reference.finished()))
        )
    bounds = tolerances.bounds(config)
    return {
        "passed": compared.within(bounds),
        "steps": steps,
        "max_relative_loss_error": compared.loss,
        "max_relative_state_error": compared.state,
        "max_relative_gradient_error": compared.gradient,
        "max_relative_difference_error": compared.difference,
        "difference_resolution": None if arithmetic is None else compared.resolution,
        "bounds": bounds,
        "runner": f"session ({manifest['engine']})",
    }


def _divisor(manifest: Mapping[str, Any]) -> Callable[[Sequence[float]], float]:
    """What a difference of a zeroth-order step's losses is divided by to be a projected gradient, from these losses."""
    if manifest.get("step", {}).get("divisor") == "deviation":
        return lambda losses: statistics.stdev(losses[1:])
    sides = 1 if differences_of(manifest) == "forward" else 2
    return lambda _: sides * float(manifest["settings"]["eps"])


def load_reference(bundle: Bundle, model: str | None, progress: Progress, **changes: Any) -> Any:
    """The method's reference on the bundle's original model, quantized as the bundle is, with its initial state.

    Args:
        changes: settings in place of the bundle's.

    Raises:
        ModelError: the model is not the one that the bundle was compiled from.
    """
    from zoexport import models
    from zoexport.methods.reference.quantized import quantize_model

    progress("loading the original model", None)
    loaded = models.load_original(bundle.manifest, model)
    beside = kind_of(config_of(bundle.manifest)).for_reference(loaded.model, bundle)
    quantize_model(loaded.model, bundle.settings, bundle.manifest["rotated_weights"])
    return make_reference(loaded.model, bundle, beside, **changes)


def make_reference(model: Any, bundle: Bundle, beside: Mapping[str, Any], **changes: Any) -> Any:
    """The method's reference on a model that computes as the bundle does.

    Args:
        model: quantized as the bundle is. beside: of the kind of training, what it needs beside the slots.
        changes: settings in place of the bundle's.
    """
    from safetensors.torch import load_file

    from zoexport.calibration import formats_in, round_inputs
    from zoexport.core.manifest import INITIAL_STATE

    round_inputs(model, formats_in(bundle))
    initial = load_file(str(bundle.path / INITIAL_STATE))
    # The file sorts its names; the noise numbers the slots in the manifest's order.
    slots = {slot["name"]: initial[slot["name"]] for slot in bundle.manifest["state"]}
    config = dataclasses.replace(config_of(bundle.manifest), **changes)
    return methods.get(bundle.method).reference(model, config, {**slots, **beside})


def _in_arrays(step: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _arrays(value) if isinstance(value, dict) else value for key, value in step.items()
    }


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


def _noise(reference: Any, session: SessionSide | Apart, step: int) -> dict[str, np.ndarray]:
    """z of a step for every slot (q, *shape), as the reference draws it; nothing of a first-order method."""
    queries = session.num_queries
    return {
        slot.name: np.stack(
            [reference.noise(slot.name, query, step).numpy() for query in range(queries)]
        )
        for slot in session.floats
        if queries
    }


def dump_step(
    folder: Path,
    step: int,
    batch: list[Example],
    sides: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]],
    settings: dict[str, Any],
) -> None:
    """Write what ``--dump`` asks for, one file a side: what went into the step and what came out, by name.

    Gradients are the projected ones of a zeroth-order step, and those of every slot of a first-order one.
    """
    inputs: dict[str, np.ndarray] = {
        "learning_rate": np.array([settings["learning_rate"]]),
        **({"epsilon": np.array([settings["eps"]])} if "eps" in settings else {}),
        "targets": np.array([example.target for example in batch]),
    }
    for row, example in enumerate(batch):
        for number, candidate in enumerate(example.candidates):
            inputs[f"tokens.{row}.{number}"] = np.array(candidate.tokens)
            inputs[f"labels.{row}.{number}"] = np.array(candidate.labels)
    for side, (result, noise) in sides.items():
        gradients = result["gradients"]
        tensors = {
            **inputs,
            "losses": np.array(result["losses"]),
            **(
                {f"gradient.{name}": value for name, value in gradients.items()}
                if isinstance(gradients, dict)
                else {"gradients": np.array(gradients)}
            ),
            **{f"noise.{name}": value for name, value in noise.items()},
            **{f"before.{name}": value for name, value in result["before"].items()},
            **{f"after.{name}": value for name, value in result["after"].items()},
        }
        (folder / f"step-{step:04d}.{side}.safetensors").write_bytes(save(tensors))
