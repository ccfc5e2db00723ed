"""Parity: compare the bundle in the session with the PyTorch reference on the same noise.

The two sides are synchronized, so that a step shows only its own errors and none from earlier
steps: the reference starts each step at the session's state, with the session's gradients pending
or, for a first-order method, updates with them. If integers are trained, it updates its own with
the session's gradients, as these stay equal. With int8 activations the losses of a step cover the
whole vocabulary and enough labels for rounding errors to average out.

For a zeroth-order method each projected gradient is also compared, as a difference of two losses,
beyond the resolution of the bundle's arithmetic (``parity_resolution``): if losses are accurate to
a hundredth, differences may be noise.
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
"""Number of labels in a step whose losses differ by rounding errors."""


@dataclasses.dataclass
class _Comparison:
    """Largest relative errors so far, and the smallest loss difference that is resolved."""

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
        """Compare one step of both sides.

        Args:
            ours, theirs: ``losses``, ``gradients``, and the state ``after``.
            divisor: returns, for a side's losses, the divisor that turns differences into projected
                gradients.
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
        """Return True if no error exceeds its bound."""
        return (
            self.loss <= bounds[tolerances.LOSS]
            and self.state <= bounds[tolerances.STATE]
            and (self.gradient or 0.0) <= bounds[tolerances.GRADIENT]
            and (self.difference or 0.0) <= bounds.get(tolerances.DIFFERENCE, math.inf)
        )


def worse(a: float, b: float) -> float:
    """Return the larger error; NaN is larger than any number."""
    return max(math.inf if math.isnan(error) else error for error in (a, b))


def state_error(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Return the relative error ||ours - theirs|| / ||theirs||, maximum over the tensors."""
    errors = [
        float(np.linalg.norm(_difference(ours[name], reference)))
        / max(float(np.linalg.norm(reference)), 1e-12)
        if reference.any()
        else float(np.linalg.norm(ours[name]))
        for name, reference in theirs.items()
    ]
    return functools.reduce(worse, errors)


def _difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    # In float32 for integers, which would wrap.
    return np.asarray(np.subtract(ours, theirs, dtype=np.result_type(ours, theirs, np.float32)))


def parity(
    bundle: Bundle, *, steps: int, model: str | None, dump: Path | None, progress: Progress
) -> dict[str, Any]:
    """Return the keys of ``parity --json``; values are compared by name.

    See :meth:`zoexport.Bundle.parity`.
    """
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
    """Return a function: losses -> divisor that turns differences into projected gradients."""
    if manifest.get("step", {}).get("divisor") == "deviation":
        return lambda losses: statistics.stdev(losses[1:])
    sides = 1 if differences_of(manifest) == "forward" else 2
    return lambda _: sides * float(manifest["settings"]["eps"])


def load_reference(bundle: Bundle, model: str | None, progress: Progress, **changes: Any) -> Any:
    """Return the reference on the original model, quantized like the bundle, at its initial state.

    Args:
        changes: settings that override the bundle's.

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
    """Return the method's reference on a model that computes like the bundle.

    Args:
        model: model quantized like the bundle. beside: additional tensors that the kind of training
            needs.
        changes: settings that override the bundle's.
    """
    from safetensors.torch import load_file

    from zoexport.calibration import formats_in, round_inputs
    from zoexport.core.manifest import INITIAL_STATE

    round_inputs(model, formats_in(bundle))
    initial = load_file(str(bundle.path / INITIAL_STATE))
    # The file is sorted by name; tensor ids of the noise follow the manifest's order.
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
    """Return z of a step for every parameter (q, *shape), drawn by the reference.

    Empty for first-order methods.
    """
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
    """Write the files of ``--dump``, one per side: inputs and results of a step, by name.

    Gradients are projected gradients for a zeroth-order step, and those of every parameter for a
    first-order one.
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
