"""Session side of ``parity_short``, in a separate process, as a program may end it.

    python -m zoexport.compiler.parity_short_session BUNDLE REQUEST RESULTS

Standard output has one JSON object per line: ``{"doing": ...}`` before each part, and at the end
``{"done": ...}`` or ``{"error": ...}``, or ``{"missing": ...}`` if the engine does not run here.
Tensors are in the safetensors file RESULTS.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from zoexport.core.errors import ZoExportError
from zoexport.core.trust import ANYONE
from zoexport.session import Bundle, Dataset, Session, Step, vulkan_devices

Rows = Sequence[tuple[list[int], list[int]]]
"""Tokens of each row, and the label after each token."""


def main() -> None:
    """Run the request."""
    bundle, request, results = map(Path, sys.argv[1:])
    missing = _missing(Bundle.open(bundle, trust=ANYONE).manifest)
    if missing:
        say(missing=missing)
        return
    try:
        done = run(bundle, json.loads(request.read_text("utf-8")), results)
    except ZoExportError as error:
        say(error=error.with_type())
        return
    say(done=done)


def _missing(manifest: Mapping[str, Any]) -> str:
    """Return what a bundle needs and this machine lacks; empty if it can be opened."""
    if manifest["engine"] == "coreml":
        return "Core ML, which only Apple's systems have"
    if manifest["engine"] == "mlx" and importlib.util.find_spec("mlx") is None:
        return "MLX; install zoexport[apple]"
    if manifest["engine"] == "vulkan":
        try:
            usable = any(not device["problem"] for device in vulkan_devices())
        except ZoExportError:
            usable = False
        return "" if usable else "a Vulkan device; on Debian, mesa-vulkan-drivers brings one"
    return ""


def say(**content: Any) -> None:
    """Write one line of the result."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def run(bundle: Path, request: dict[str, Any], results: Path) -> dict[str, Any]:
    """Open the bundle and run its programs.

    Args:
        request: ``first`` and ``second``, rows of two steps (the second may be empty); ``longer``,
            rows of further steps, which run in ``shallow``, a bundle of fewer layers, if not null,
            for each value of ``activation_cache_mb`` (empty: the bundle's), or are only evaluated
            if ``steps`` is false; ``prompt``, tokens of the prompt, may be empty; ``run``,
            settings; ``values``, a safetensors file of parameters; ``gradients``, names of
            parameters.

    Returns:
        ``token``, the first generated token; with a second step, ``loss`` of the first rows before
        any step; ``losses`` of each step; ``gradients``, the projected gradients of the first step;
        ``longer``, for each of these rows the loss of a first-order step and the sum of its
        gradients' magnitudes, or for a zeroth-order method the loss of its values, and 0.
    """
    found: dict[str, Any] = {"token": None}
    tensors: dict[str, np.ndarray] = {}
    values = load_file(request["values"])
    say(doing="opening the bundle")
    with _opened(bundle, request, values) as session:
        if request["prompt"]:
            say(doing="generating")
            made = session.generate(request["prompt"], max_new_tokens=2, stop_tokens=())
            found["token"] = made.tokens[0]
        steps: list[Step] = []
        if request["second"]:
            found["loss"], _ = _evaluated(session, request["first"])
        for rows in filter(None, (request["first"], request["second"])):
            say(doing=f"training, step {len(steps)}")
            steps.append(_step(session, rows))
        found["losses"] = [step.losses for step in steps]
        found["gradients"] = steps[0].gradients
        for name in request["gradients"]:
            tensors[f"gradient.{name}"] = _read(session, name, gradient=True)
        tensors |= _state(session)
    with _opened(Path(request["shallow"] or bundle), request, values) as session:
        rows = request["longer"] * max(1, len(request["activation_cache_mb"]))
        found["longer"] = (
            [_evaluated(session, one) for one in rows] if session.info.num_queries else []
        )
        for number, one in enumerate(rows if request["steps"] else ()):
            if number % len(request["longer"]) == 0 and request["activation_cache_mb"]:
                session.configure(
                    activation_cache_mb=request["activation_cache_mb"][
                        number // len(request["longer"])
                    ]
                )
            say(doing=f"training on a row of {len(one[0][0])} tokens")
            loss = _step(session, one).losses[0]
            if not session.info.num_queries:
                found["longer"].append((loss, _gradients(session)))
    save_file(tensors, results)
    return found


@contextlib.contextmanager
def _opened(bundle: Path, request: dict[str, Any], values: Mapping[str, Any]) -> Iterator[Session]:
    opened = Bundle.open(bundle, trust=ANYONE)
    with opened.session(verify=False, cache="", falls_back=False) as session:
        session.configure(**request["run"])
        for name in {slot.name for slot in session.slots()} & values.keys():
            session.write_slot(name, values[name])
        yield session


def _dataset(rows: Rows) -> Dataset:
    dataset = Dataset()
    for tokens, labels in rows:
        dataset.add([(tokens, labels)])
    return dataset


def _step(session: Session, rows: Rows) -> Step:
    with _dataset(rows) as dataset:
        return session.step(dataset, range(len(rows)))


def _state(session: Session) -> dict[str, np.ndarray]:
    """Return every parameter as evaluated by the last step."""
    if not session.info.num_queries:
        return {}
    trained = (slot.name for slot in session.slots() if slot.role == "trainable")
    return {name: _read(session, name, finished=False) for name in trained}


def _evaluated(session: Session, rows: Rows) -> tuple[float, float]:
    say(doing=f"evaluating a row of {len(rows[0][0])} tokens")
    with _dataset(rows) as dataset:
        return session.evaluate(dataset).loss, 0.0


def _gradients(session: Session) -> float:
    """Return the sum of the magnitudes of a first-order step's gradients."""
    trained = [slot.name for slot in session.slots() if slot.role == "trainable"]
    return sum(float(np.abs(_read(session, name, gradient=True)).sum()) for name in trained)


def _read(session: Session, name: str, **which: bool) -> np.ndarray:
    slot = session.slot(name)
    return np.frombuffer(session.read_slot(name, **which), slot.passed).reshape(slot.shape)


if __name__ == "__main__":
    main()
