"""parity: the bundle in the session against the method's reference in PyTorch, with the same noise.

Of a first-order method, and where activations are int8, the two sides are kept together (``core.tolerances`` says why):
the reference begins each step at the session's state, and a first-order one updates with the session's gradients. With
int8 a step's losses are over the whole vocabulary and over labels enough for single roundings to average out. Where
integers are trained, the reference updates its own with the session's gradients. Otherwise both run freely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters.integers import scales_of
from zoexport.chosen import places_of
from zoexport.core import manifest as manifests
from zoexport.core import tolerances
from zoexport.core.config import parse
from zoexport.core.files import atomic_folder
from zoexport.methods import methods
from zoexport.parity.batches import make_batch
from zoexport.parity.dump import dump_step
from zoexport.parity.session_side import SessionSide

_LABELS_TO_AVERAGE = 256
"""Labels of a step whose losses differ by roundings."""


@dataclasses.dataclass
class _Comparison:
    """The largest relative errors so far."""

    loss: float = 0.0
    state: float = 0.0
    gradient: float | None = None

    def add(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        for mine, reference in zip(ours["losses"], theirs["losses"], strict=True):
            error = abs(mine - reference) / max(abs(reference), 1e-12)
            self.loss = worse(self.loss, error)
        self.state = worse(self.state, state_error(ours["after"], theirs["after"]))
        if isinstance(theirs["gradients"], dict):
            error = state_error(ours["gradients"], theirs["gradients"])
            self.gradient = worse(self.gradient or 0.0, error)

    def within(self, bounds: Mapping[str, float]) -> bool:
        """Whether no error exceeds its bound."""
        return (
            self.loss <= bounds[tolerances.LOSS]
            and self.state <= bounds[tolerances.STATE]
            and (self.gradient or 0.0) <= bounds[tolerances.GRADIENT]
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
    bundle: Path,
    *,
    steps: int,
    model: str | None = None,
    dump: Path | None = None,
    progress: Callable[[str, float | None], None],
) -> dict[str, Any]:
    """Train ``steps`` steps on both sides and compare by name.

    Args:
        bundle: a bundle of a method that has a reference.
        steps: training steps to compare.
        model: where the original model is, if not where it was compiled from.
        dump: a folder for the noise, inputs, losses, gradients and state of every step, from both sides.
        progress: called with what is being done and how far it is.

    Returns:
        The keys of ``parity --json``.

    Raises:
        ZoExportError: the bundle or the model cannot be used. A failed comparison is not an error.
    """
    manifest = manifests.read(bundle, verify_files=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(atomic_folder(dump)) if dump is not None else None
        settings, vocabulary = manifest["settings"], manifest["model"]["vocab_size"]
        rounds = tolerances.rounds(settings)
        if rounds:
            settings["loss"] = "full"
        reference = load_reference(manifest, bundle, model, progress)
        session = stack.enter_context(SessionSide(bundle, settings["loss"]))
        first_order = not session.session.info.queries
        integers = "grid" in manifest
        compared = _Comparison()
        gradients: Any = []
        for step in range(steps):
            progress("comparing", step / steps)
            batch = make_batch(settings, vocabulary, step, _LABELS_TO_AVERAGE if rounds else 0)
            if first_order:
                reference.follow(session.tensors())
            elif integers:
                if step:
                    reference.take(gradients, settings["lr"])
            elif rounds:
                reference.follow(session.tensors(), gradients, settings["lr"])
            ours = session.step(batch)
            gradients = ours["gradients"]
            applied = {"applied": _tensors(gradients)} if first_order else {}
            theirs = _in_arrays(reference.step(batch, settings["lr"], **applied))
            compared.add(ours, theirs)
            if folder is not None:
                sides = {
                    "session": (ours, session.noise(step)),
                    "reference": (theirs, _noise(reference, session, step)),
                }
                dump_step(folder, step, batch, sides, settings)
        if integers:
            reference.take(gradients, settings["lr"])
        elif rounds and not first_order:
            reference.follow(session.tensors(), gradients, settings["lr"])
        compared.state = worse(
            compared.state, state_error(session.state(), _arrays(reference.finished()))
        )
    bounds = tolerances.bounds(settings)
    return {
        "passed": compared.within(bounds),
        "steps": steps,
        "max_relative_loss_error": compared.loss,
        "max_relative_state_error": compared.state,
        "max_relative_gradient_error": compared.gradient,
        "bounds": bounds,
        "runner": f"session ({manifest['engine']})",
    }


def load_reference(
    manifest: dict[str, Any],
    bundle: Path,
    model: str | None,
    progress: Callable[[str, float | None], None],
) -> Any:
    """The method's reference on the bundle's original model, quantized as the bundle is, with its initial state.

    Raises:
        ModelError: the model is not the one that the bundle was compiled from.
    """
    from safetensors.torch import load_file

    from zoexport import models
    from zoexport.activations import formats_in, round_inputs
    from zoexport.build import INITIAL_STATE
    from zoexport.quantized_reference import quantize_model

    progress("loading the original model", None)
    loaded = models.load_original(manifest, model)
    chosen = places_of(bundle, manifest)
    for name, places in chosen.items():
        loaded.model.get_parameter(name).data.view(-1)[places] = 0
    quantize_model(loaded.model, manifest["settings"], manifest["rotated_weights"])
    round_inputs(loaded.model, formats_in(bundle, manifest))
    method = methods.get(manifest["method"])
    config: Any = parse(method.config, manifest["settings"])
    initial = load_file(str(bundle / INITIAL_STATE))
    # The file sorts its names; the noise numbers the slots in the manifest's order.
    slots = {slot["name"]: initial[slot["name"]] for slot in manifest["state"]}
    slots |= {f"places.{name}": places for name, places in chosen.items()}
    if "grid" in manifest:
        scales = scales_of(bundle, manifest)
        slots |= {f"scales.{name}": tensor for name, tensor in scales.items()}
    return method.reference(loaded.model, config, slots)


def _in_arrays(step: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _arrays(value) if isinstance(value, dict) else value for key, value in step.items()
    }


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy().copy() for name, tensor in tensors.items()}


def _noise(reference: Any, session: SessionSide, step: int) -> dict[str, np.ndarray]:
    """z of a step for every slot (q, *shape), as the reference draws it; nothing of a first-order method."""
    queries = session.session.info.queries
    return {
        slot.name: np.stack(
            [reference.noise(slot.name, query, step).numpy() for query in range(queries)]
        )
        for slot in session.floats
        if queries
    }
