"""What the tests of the Kotlin and Swift hosts are given: a bundle, examples, and what Python's host makes of them.

A host's test gets the folder of :func:`make_case` and an empty one to write into. It repeats the run there, and
``check_states`` compares its state folders with Python's, byte by byte.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.signed import make_keys, sign
from zoexport.core.errors import ZoExportError
from zoexport.session import Bundle, Dataset, Engine, Evaluation, Session

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
STEPS = 6
THREADS = 1
SETTINGS: dict[str, Any] = {
    "learning_rate": 0.03,
    "loss": "choices",
    "lr_scheduler_type": "cosine",
    "batch_size": 2,
    "seed": 2**63 + 5,  # beyond a signed number of 64 bits
}
#: Where a host leaves its states: one undisturbed run, and one that was cancelled, closed and resumed. The name has
#: characters of two, three and four bytes in UTF-8.
STATES = "états ▶ \N{FOX FACE}"
#: Bytes of ``work.bin`` before the copies.
_WORK_HEADER = 4096


def make_case(folder: Path, method: str = "prge", target: str = "host") -> Path:
    """Compile a bundle and write ``examples.jsonl``, ``bad.jsonl``, ``expected.json`` and ``state`` beside it.

    Beside a Core ML package also what its functions computed (tests.support.coreml_recording).
    """
    settings = {
        "weights": "int4",
        "batch_size": 2,
        **({} if method == "mebp" else {"num_queries": 2}),
    }
    compiled = Compiler().bundle("llama_tied", method, target, **settings)
    shutil.copytree(compiled, folder / "bundle")
    keys = make_keys(folder / "keys")
    sign(folder / "bundle", keys.secret)
    _write_examples(folder / "examples.jsonl")
    (folder / "bad.jsonl").write_text(
        '{"candidates": [{"tokens": [1, 2], "labels": [2]}], "target": 0}\n'
    )
    if target == "ios-coreml":
        from tests.support.coreml_recording import recorded
        from zoexport.testing import PackageEngine

        with recorded(folder / "bundle", folder):
            expected = _expected(folder, PackageEngine(Bundle.open(folder / "bundle")))
    else:
        expected = _expected(folder)
    expected["trusted"], expected["other"] = keys.secret.public.line, keys.other.public.line
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))
    return folder


def check_states(case: Path, output: Path, *interrupted: str) -> None:
    """The runs that a host left below ``output`` are Python's run, to the last byte.

    They are ``whole``, ``resumed``, and those called ``interrupted``. Where Python's numbers are met within bounds
    only, the others are ``whole`` to the last byte.
    """
    whole = output / STATES / "whole"
    files = sorted(path.name for path in (case / "state").iterdir())
    assert sorted(path.name for path in whole.iterdir()) == files
    exact = json.loads((case / "expected.json").read_text())["bounds"] is None
    expected = case / "state" if exact else whole
    for name in files:
        # What was interrupted has more: the snapshot of its interruption.
        for state in (whole, *(output / STATES / other for other in ("resumed", *interrupted))):
            assert content(state / name) == content(expected / name), f"{state.name}: {name}"


def content(path: Path) -> bytes:
    """What every host must write alike."""
    if path.name == "lock":  # that holds the number of its last process
        return b""
    # The header names the boot, the device and the file (docs/formats.md).
    return path.read_bytes()[_WORK_HEADER if path.name == "work.bin" else 0 :]


def run(*command: object, cwd: Path = ROOT, environment: Mapping[str, object] | None = None) -> str:
    """Run a tool and return what it printed; its whole output is the message where it fails."""
    # Without a locale of UTF-8, a JVM cannot name the files of STATES.
    changes = {"LC_ALL": "C.UTF-8", **(environment or {})}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **{name: str(value) for name, value in changes.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{command[0]} exited {done.returncode}:\n{done.stdout}"
    return done.stdout


def needed(tool: str, what: str) -> Path:
    """A tool on the PATH; its absence is a failure that names what to install, never a skip."""
    found = shutil.which(tool)
    if found is None:
        pytest.fail(f"{tool} was not found on the PATH. Install {what}.", pytrace=False)
    return Path(found)


def environment_tool(name: str) -> Path:
    """A program of this Python environment."""
    return Path(sys.executable).with_name(name)


def _write_examples(path: Path) -> None:
    """Seven examples of one or two labels, with two or three choices."""
    with path.open("w") as file:
        for number in range(7):
            prompt = [(7 * number + 3 * place) % 290 + 1 for place in range(3 + number)]
            candidates = []
            for choice in range(2 + number % 2):
                completion = [11 + choice, 40 + number][: 1 + number % 2]
                tokens = prompt + completion[:-1]
                labels = [-100] * (len(prompt) - 1) + completion
                candidates.append({"tokens": tokens, "labels": labels})
            file.write(json.dumps({"candidates": candidates, "target": number % 2}) + "\n")


def _expected(folder: Path, engine: Engine | None = None) -> dict[str, Any]:
    state, bundle = folder / "state", folder / "bundle"
    with Dataset() as dataset, Session.open(bundle, threads=THREADS, engine=engine) as session:
        dataset.load(folder / "examples.jsonl")
        defaults = session.settings
        session.attach(state, seed=SETTINGS["seed"])
        session.configure(**SETTINGS)
        before = session.evaluate(dataset)
        session.train(dataset, STEPS)
        info = session.info
        slots = session.slots()
        return {
            "threads": THREADS,
            "steps": STEPS,
            "states": STATES,
            "settings": {**SETTINGS, "seed": str(SETTINGS["seed"])},
            "defaults": {
                "batch_size": defaults["batch_size"],
                "learning_rate": defaults["learning_rate"],
                "seed": str(defaults["seed"]),
            },
            "info": {
                "bundle_id": info.bundle_id,
                "method": info.method,
                "target": info.target,
                "engine": info.engine,
                "numbers": [
                    info.rows,
                    info.max_length,
                    info.copies,
                    info.num_queries,
                    info.max_labels,
                    info.steps,
                ],
            },
            # Bits are equal where the same library computes; MLX takes exponentials from the system's.
            "bounds": Bundle.open(folder / "bundle").manifest["tolerances"]
            if info.engine == "mlx"
            else None,
            "slots": [
                {
                    "name": slot.name,
                    "role": slot.role,
                    "module": slot.module,
                    "tensor_id": slot.tensor_id,
                    "shape": list(slot.shape),
                    "finished": _bits(session.read_slot(slot.name)),
                    "current": _bits(session.read_slot(slot.name, finished=False)),
                }
                for slot in slots
            ],
            "records": [
                {
                    "loss": _bits([record.loss])[0],
                    "learning_rate": _bits([record.learning_rate])[0],
                    "gradients": _bits(record.gradients),
                }
                for record in map(session.record, range(STEPS))
            ],
            "before": _numbers(before),
            "after": _numbers(session.evaluate(dataset)),
            "bad": _bad_data(folder / "bad.jsonl"),
        }


def _numbers(evaluation: Evaluation) -> list[float | None]:
    return [evaluation.loss, evaluation.accuracy, evaluation.token_accuracy, evaluation.examples]


def _bad_data(path: Path) -> dict[str, str]:
    with Dataset() as dataset:
        try:
            dataset.load(path)
        except ZoExportError as error:
            return error.as_dict()
    raise AssertionError(f"{path} was accepted")


def _bits(values: Any) -> list[str]:
    """Float32 values as eight hexadecimal digits each."""
    return [struct.pack(">f", value).hex() for value in values]
