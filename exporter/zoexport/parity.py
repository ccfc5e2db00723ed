"""parity: the bundle in the session against the method's reference in PyTorch, with the same noise.

Batches are made here: unequal lengths, padding, a label at the first and at the last position, tokens over the
whole vocabulary. Where activations are int8 the two sides are kept together (``core.tolerances`` says why): the
reference begins each step at the session's state, and a step's losses are over the whole vocabulary and over labels
enough for single roundings to average out. Otherwise both run freely.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from zoexport.core import manifest as manifests
from zoexport.core import rng, tolerances
from zoexport.core.config import parse
from zoexport.core.errors import ModelError
from zoexport.core.files import atomic_folder
from zoexport.data import Candidate, Example
from zoexport.methods import methods
from zoexport.session import Dataset, Session
from zoexport.session import normals as runtime_normals

_BATCH_TENSOR_ID = 0x7FFFFFFF
"""Words for the batches come from the noise specification, at a tensor id that no slot has."""
_LABELS_TO_AVERAGE = 256
"""Labels of a step whose losses differ by roundings."""


@dataclasses.dataclass
class _Comparison:
    """The largest relative errors so far."""

    loss: float = 0.0
    state: float = 0.0

    def add(self, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
        for mine, reference in zip(ours["losses"], theirs["losses"], strict=True):
            self.loss = max(self.loss, abs(mine - reference) / max(abs(reference), 1e-12))
        self.state = max(self.state, state_error(ours["after"], theirs["after"]))


def state_error(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """The norm of the difference over the norm of the reference, largest over the tensors."""
    return max(
        float(np.linalg.norm(ours[name] - reference) / max(float(np.linalg.norm(reference)), 1e-12))
        if reference.any()
        else float(np.linalg.norm(ours[name]))
        for name, reference in theirs.items()
    )


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
        follows = tolerances.follows_the_session(settings["activations"])
        if follows:
            settings["loss"] = "full"
        reference = _reference(manifest, bundle, model, progress)
        session = stack.enter_context(_SessionSide(bundle, settings["loss"]))
        compared = _Comparison()
        gradients: list[float] = []
        for step in range(steps):
            progress("comparing", step / steps)
            batch = make_batch(settings, vocabulary, step, _LABELS_TO_AVERAGE if follows else 0)
            if follows:
                reference.follow(session.tensors(), gradients, settings["lr"])
            ours = session.step(batch)
            theirs = _reference_step(reference, batch, settings["lr"])
            compared.add(ours, theirs)
            gradients = ours["gradients"]
            if folder is not None:
                noise = {
                    slot.name: np.stack(
                        [
                            reference.noise(slot.tensor_id, query, slot.module, step).numpy()
                            for query in range(len(theirs["gradients"]))
                        ]
                    )
                    for slot in session.slots
                }
                sides = {"session": (ours, session.noise(step)), "reference": (theirs, noise)}
                _dump_step(folder, step, batch, sides, settings)
        if follows:
            reference.follow(session.tensors(), gradients, settings["lr"])
        compared.state = max(compared.state, state_error(session.state(), _finish(reference)))
    bounds = tolerances.bounds(settings["activations"])
    return {
        "passed": compared.loss <= bounds[tolerances.LOSS]
        and compared.state <= bounds[tolerances.STATE],
        "steps": steps,
        "max_relative_loss_error": compared.loss,
        "max_relative_state_error": compared.state,
        "bounds": bounds,
        "runner": f"session ({manifest['engine']})",
    }


def make_batch(
    settings: dict[str, Any], vocabulary: int, step: int, least_labels: int = 0
) -> list[Example]:
    """The examples of one step, a function of the arguments alone.

    In even steps the first fills the sequence and has labels at its first and last position. All others are shorter,
    each of its own length, some positions without a label, so that in odd steps no row fills the sequence and the
    session may give the program shorter rows. With loss=choices an example has two or three candidates, each with
    a few labels.

    Args:
        settings: ``seq_len``, ``batch`` and ``loss`` of the bundle.
        vocabulary: tokens are below it.
        step: the step's number.
        least_labels: examples follow until they have as many labels, beyond ``batch`` where need be.
    """
    examples: list[Example] = []
    labels = 0
    while len(examples) < settings["batch"] or labels < least_labels:
        examples.append(_example(settings, vocabulary, step, len(examples)))
        labels += sum(label >= 0 for label in examples[-1].candidates[0].labels)
    return examples


def _example(settings: dict[str, Any], vocabulary: int, step: int, number: int) -> Example:
    seq_len = settings["seq_len"]
    words = rng.words(step, _BATCH_TENSOR_ID, number, step, 8 * seq_len + 8).astype(np.uint64)
    count = 1 if settings["loss"] == "full" else 2 + int(words[0] % 2)
    full = number == 0 and step % 2 == 0
    candidates = []
    for candidate in range(count):
        part = words[8 + 2 * candidate * seq_len :]
        length = seq_len if full else 1 + int(words[1 + candidate] % max(seq_len - 1, 1))
        tokens = [int(word % vocabulary) for word in part[:length]]
        labels = [int(word % vocabulary) for word in part[seq_len : seq_len + length]]
        labels[0], labels[-1] = 0, vocabulary - 1
        for position in range(length):
            ends = position == length - 1 or (full and position == 0)
            # A choice is a few tokens after a prompt: many labels would make one choice certain, its loss
            # zero, and relative errors meaningless.
            kept = position >= length - 1 - candidate if count > 1 else part[position] % 3 > 0
            if not (ends or kept):
                labels[position] = -100
        candidates.append(Candidate(tokens, labels))
    return Example(candidates, int(words[7] % count))


def _reference(
    manifest: dict[str, Any],
    bundle: Path,
    model: str | None,
    progress: Callable[[str, float | None], None],
) -> Any:
    from safetensors.torch import load_file

    from zoexport import models
    from zoexport.build import INITIAL_STATE
    from zoexport.quantized_reference import quantize_model

    progress("loading the original model", None)
    loaded = models.load(models.resolve(model or manifest["model"]["source"]))
    if loaded.sha256 != manifest["model"]["sha256"]:
        raise ModelError(
            f"model {loaded.name}",
            found=f"weights with SHA-256 {loaded.sha256[:16]}...",
            expected=f"the weights that the bundle was compiled from, {manifest['model']['sha256'][:16]}...",
            fix="Pass the original model with --model.",
        )
    quantize_model(loaded.model, manifest["settings"], manifest["rotated_weights"])
    method = methods.get(manifest["method"])
    config: Any = parse(method.config, manifest["settings"])
    initial = load_file(str(bundle / INITIAL_STATE))
    # The file sorts its names; the noise numbers the slots in the manifest's order.
    slots = {slot["name"]: initial[slot["name"]] for slot in manifest["state"]}
    return method.reference(loaded.model, config, slots)


def _reference_step(reference: Any, batch: list[Example], learning_rate: float) -> dict[str, Any]:
    result = reference.step(batch, learning_rate)
    for key in ("before", "after"):
        result[key] = {f"lora_B.{name}": b.numpy().copy() for name, b in result[key].items()}
    return dict(result)


def _finish(reference: Any) -> dict[str, np.ndarray]:
    reference.finish()
    return {f"lora_B.{name}": b.numpy().copy() for name, b in reference.b.items()}


class _SessionSide:
    """The bundle in the C++ session, step by step, with nothing kept on disk."""

    def __init__(self, bundle: Path, loss: str) -> None:
        self.session = Session.open(bundle)
        self.session.configure(loss=loss)
        self.slots = [slot for slot in self.session.slots() if slot.role == "trainable"]

    def __enter__(self) -> _SessionSide:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def step(self, batch: list[Example]) -> dict[str, Any]:
        before = self.state(finished=False)
        with Dataset() as dataset:
            for example in batch:
                dataset.add(
                    [(candidate.tokens, candidate.labels) for candidate in example.candidates],
                    example.target,
                )
            step = self.session.step(dataset, range(len(batch)))
        return {
            "losses": list(step.losses),
            "gradients": list(step.gradients),
            "before": before,
            "after": self.state(finished=False),
        }

    def state(self, *, finished: bool = True) -> dict[str, np.ndarray]:
        """Every master B, with the pending update applied or as the last step evaluated it."""
        return {
            slot.name: np.frombuffer(
                self.session.read_slot(slot.name, finished=finished), np.float32
            ).reshape(slot.shape)
            for slot in self.slots
        }

    def tensors(self) -> dict[str, Any]:
        """The state as the last step evaluated it, for the reference to go on from."""
        import torch

        return {name: torch.from_numpy(b.copy()) for name, b in self.state(finished=False).items()}

    def noise(self, step: int) -> dict[str, np.ndarray]:
        """z of a step for every slot (q, *shape), from the runtime's own generator."""
        info = self.session.info
        return {
            slot.name: np.stack(
                [
                    np.frombuffer(
                        runtime_normals(
                            info.seed,
                            tensor_id=slot.tensor_id,
                            query=query,
                            step=step,
                            count=math.prod(slot.shape),
                        ),
                        np.float32,
                    ).reshape(slot.shape)
                    for query in range(info.queries)
                ]
            )
            for slot in self.slots
        }


def _dump_step(
    folder: Path,
    step: int,
    batch: list[Example],
    sides: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]],
    settings: dict[str, Any],
) -> None:
    """One file a side: what went into the step and what came out, by name."""
    inputs: dict[str, np.ndarray] = {
        "learning_rate": np.array([settings["lr"]]),
        "epsilon": np.array([settings["eps"]]),
        "targets": np.array([example.target for example in batch]),
    }
    for row, example in enumerate(batch):
        for number, candidate in enumerate(example.candidates):
            inputs[f"tokens.{row}.{number}"] = np.array(candidate.tokens)
            inputs[f"labels.{row}.{number}"] = np.array(candidate.labels)
    for side, (result, noise) in sides.items():
        tensors = {
            **inputs,
            "losses": np.array(result["losses"]),
            "gradients": np.array(result["gradients"]),
            **{f"noise.{name}": value for name, value in noise.items()},
            **{f"before.{name}": value for name, value in result["before"].items()},
            **{f"after.{name}": value for name, value in result["after"].items()},
        }
        (folder / f"step-{step:04d}.{side}.safetensors").write_bytes(save(tensors))
