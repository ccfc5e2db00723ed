"""Write rng.json, the vectors of docs/noise.md that every language checks.

    python graphs/golden/regenerate_rng.py

The known answers are Random123's own (kat_vectors); the rest comes from zoexport.core.rng. It refuses a
working tree with changes, so that the recorded commit is what made the file.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.core import rng

HERE = Path(__file__).parent
OUTPUT = HERE / "rng.json"

# Salmon et al., Random123, examples/kat_vectors, philox4x32 with 10 rounds: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0"),
]
KNOWN_RESULTS = [
    "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "408f276d 41c83b0e a20bc7c6 6d5451fd",
    "d16cfe09 94fdcceb 5001e420 24126ea1",
]

# seed, tensor_id, query, step, start, count: odd offsets, lone elements, and the ends of every range.
STREAMS = [
    (0, 0, 0, 0, 0, 16),
    (1, 0, 0, 0, 0, 9),
    (42, 7, 3, 1000, 5, 11),
    (42, 7, 3, 1000, 255, 4),
    (42, 7, 3, 1000, 1023, 1),
    (0x0123456789ABCDEF, 59, 1, 99999, 2, 300),
    (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF, 0, 8),
    (1 << 32, 1, 0, 1, 3, 6),
    (1 << 63, 0x80000001, 2, 4294967295, 1, 7),
    (2026, 12, 0, 17, (1 << 34) - 7, 7),
]
# seed, tensor id of a second matrix, example, step, share, start, count: shares next to 0 and 1, and one that rounds.
MASKS = [
    (0, 1, 0, 0, 0.0, 0, 8),
    (42, 3, 2, 1000, 0.1, 0, 40),
    (42, 3, 2, 1000, 0.1, 33, 7),
    (0xFFFFFFFFFFFFFFFF, 0x1FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0.5, 1, 19),
    (1 << 63, 59, 7, 17, 2.0**-32, 0, 8),
    (2026, 5, 1, 3, 1 - 2.0**-31, (1 << 34) - 9, 9),
]
PERMUTATIONS = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (3, 1, 10), (0xFFFFFFFFFFFFFFFF, 4294967295, 100)]


def hexadecimal(values: np.ndarray[Any, Any]) -> list[str]:
    """The bit patterns as eight digits each."""
    return [f"{int(value):08x}" for value in values.view(np.uint32).reshape(-1)]


def vectors() -> dict[str, Any]:
    """Everything in the file except who wrote it."""
    streams = []
    for seed, tensor_id, query, step, start, count in STREAMS:
        arguments = (seed, tensor_id, query, step, count, start)
        streams.append(
            {
                "seed": f"{seed:016x}",
                "tensor_id": tensor_id,
                "query": query,
                "step": step,
                "start": start,
                "words": hexadecimal(rng.words(*arguments)),
                "normals": hexadecimal(rng.normals(*arguments)),
                "signs": [int(sign) for sign in rng.signs(*arguments)],
            }
        )
    return {
        "spec": rng.SPEC_ID,
        "known_answers": [
            {"counter": counter.split(), "key": key.split(), "result": result.split()}
            for (counter, key), result in zip(KNOWN_ANSWERS, KNOWN_RESULTS, strict=True)
        ],
        "streams": streams,
        "masks": [
            {
                "seed": f"{seed:016x}",
                "tensor_id": tensor_id,
                "example": example,
                "step": step,
                "share": share.hex(),
                "start": start,
                "factors": hexadecimal(
                    rng.kept(
                        *(seed, rng.DROPOUT | tensor_id, example, step, count, share), start=start
                    )
                ),
            }
            for seed, tensor_id, example, step, share, start, count in MASKS
        ],
        "permutations": [
            {
                "seed": f"{seed:016x}",
                "epoch": epoch,
                "n": n,
                "order": rng.permutation(seed, epoch, n).tolist(),
            }
            for seed, epoch, n in PERMUTATIONS
        ],
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(output: Path, content: dict[str, Any]) -> int:
    """Write a file of vectors and who made it; exit status 1, and nothing written, where the tree has changes."""
    changes = _git("status", "--porcelain")
    if changes:
        sys.stderr.write(f"refused: commit or stash these changes first\n{changes}\n")
        return 1
    made_by = {
        "commit": _git("rev-parse", "HEAD"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    output.write_text(json.dumps({"made_by": made_by, **content}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(write(OUTPUT, vectors()))
