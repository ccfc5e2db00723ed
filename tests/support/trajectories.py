"""The bundles of graphs/golden/trajectories.json, for the tests of every language.

    python -m tests.support.trajectories FOLDER

compiles them as ``FOLDER/<method>/bundle`` and writes ``FOLDER/examples.jsonl``. A zeroth-order method also has
``FOLDER/<method>/logged``: a state whose log holds the golden gradients, so that the noise specification alone fixes
its slots to the last bit, whatever the machine computes as losses.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.compiled import Compiler

GOLDEN = Path(__file__).parents[2] / "graphs" / "golden" / "trajectories.json"


def make_case(folder: Path) -> Path:
    """Compile the bundles into ``folder``, and write the examples and states beside them."""
    golden = json.loads(GOLDEN.read_text())
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(example) + "\n" for example in golden["examples"]]
    (folder / "examples.jsonl").write_text("".join(lines))
    compiler = Compiler()
    for run in golden["trajectories"]:
        place = folder / run["method"]
        place.mkdir()
        compiled = compiler.bundle(run["model"], run["method"], **run["settings"])
        bundle = shutil.copytree(compiled, place / "bundle")
        if run["gradients"]:
            write_log(place / "logged", bundle, run)
    return folder


def write_log(state: Path, bundle: Path, run: dict[str, Any]) -> None:
    """A state folder (docs/formats.md) of a bundle, whose log holds the records of a golden run."""
    seed, queries = int(run["seed"], 16), len(run["gradients"][0])
    bundle_id = json.loads((bundle / "manifest.json").read_text())["bundle_id"]
    state.mkdir()
    identity = {"bundle_id": bundle_id, "method": run["method"], "schema_version": 1, "seed": seed}
    (state / "state.json").write_text(json.dumps(identity))
    log = _checked(
        b"ZOLOG\0\0\2" + bytes.fromhex(bundle_id) + struct.pack("<QIQ", seed, queries, 0)
    )
    for step, (losses, learning_rate, gradients) in enumerate(
        zip(run["losses"], run["rates"], run["gradients"], strict=True)
    ):
        loss = struct.pack("<f", sum(losses) / len(losses))
        record = (
            struct.pack("<I", step)
            + _floats([learning_rate, run["eps"]])
            + loss
            + _floats(gradients)
        )
        log += _checked(record, before=int.from_bytes(log[-4:], "little"))
    (state / "trajectory.log").write_bytes(log)


def _floats(words: Sequence[str]) -> bytes:
    return b"".join(bytes.fromhex(word)[::-1] for word in words)


def _checked(content: bytes, before: int = 0) -> bytes:
    return content + struct.pack("<I", zlib.crc32(content, before))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    make_case(target)
