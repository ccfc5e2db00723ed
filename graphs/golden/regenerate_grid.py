"""Write grid.json, the integers of docs/noise.md that every language checks.

    python graphs/golden/regenerate_grid.py

It comes from zoexport.core.grid. It refuses a working tree with changes, so that the recorded commit is what made the
file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from regenerate_rng import hexadecimal, write

from zoexport.core import grid, rng

OUTPUT = Path(__file__).parent / "grid.json"

TABLES = [(0.1, 2), (0.5, 2), (0.25, 4), (2.5, 4), (5.0, 8)]
# table, seed, tensor_id, query, step, start, count
DRAWS = [
    (0, 0, 0, 0, 0, 0, 70),
    (1, 1 << 63, 59, 1, 99999, 3, 300),
    (2, 0xFFFFFFFFFFFFFFFF, 0x7FFFFFFE, 0xFFFFFFFF, 0xFFFFFFFF, 1021, 9),
    (3, 42, 7, 3, 1000, 255, 64),
    (4, 2026, 12, 0, 17, (1 << 34) - 130, 130),
]
# table, bits of a weight, gradients, learning_rate, seed, tensor_id, step of the gradients, second, summed
UPDATES = [
    (0, 4, [0.75], 0.05, 7, 3, 0, True, False),
    (0, 4, [-2.5, 0.0, 1e-3, 30.0], 0.02, 1 << 40, 0x7FFFFFFE, 0xFFFFFFFE, True, False),
    (1, 4, [-2.5, 0.3], 0.7, 5, 3, 1, False, False),
    (3, 4, [1.0, -1.0, 0.5], 0.9, 5, 3, 1, True, False),
    (1, 8, [20.0, -3.0], 1.5, 5, 3, 1, True, False),
    (4, 8, [1.7, 400.0], 3.0, 9, 21, 12, True, False),
    (4, 8, [1e30, -1e30, -1e-30], 3.0, 9, 21, 12, False, False),
    (0, 4, [-2.5, 0.0, 1e-3, 30.0], 0.02, 1 << 40, 0x7FFFFFFE, 0xFFFFFFFE, True, True),
    (1, 4, [-2.5, 0.3], 0.7, 5, 3, 1, False, True),
    (4, 8, [1.7, 400.0, -30.0], 3.0, 9, 21, 12, True, True),
    (4, 8, [1e30, -1e30, -1e-30], 3.0, 9, 21, 12, False, True),
]
INTEGERS = 300
LIMITS = {4: (-8, 7), 8: (-127, 127)}


def _bits(*values: float) -> list[str]:
    return hexadecimal(np.array(values, np.float32))


def _integers(bits: int) -> NDArray[np.int8]:
    """Any integers of a grid."""
    low, high = LIMITS[bits]
    words = rng.words(99, bits, 0, 0, INTEGERS)
    return ((words % np.uint32(high - low + 1)).astype(np.int64) + low).astype(np.int8)


def vectors() -> dict[str, Any]:
    """Everything in the file except who wrote it."""
    tables = [grid.pair_table(eps, bits) for eps, bits in TABLES]
    draws = []
    for table, seed, tensor_id, query, step, start, count in DRAWS:
        first, second = grid.draw_pairs(
            tables[table], seed, tensor_id, query, step, count, start=start
        )
        draws.append(
            {
                "table": table,
                "seed": f"{seed:016x}",
                "tensor_id": tensor_id,
                "query": query,
                "step": step,
                "start": start,
                "first": " ".join(map(str, first)),
                "second": " ".join(map(str, second)),
            }
        )
    updates = []
    for (
        table,
        bits,
        gradients,
        learning_rate,
        seed,
        tensor_id,
        step,
        second_rounding,
        summed,
    ) in UPDATES:
        integers, eps = _integers(bits), TABLES[table][0]
        moved = grid.update_codes(
            integers,
            *LIMITS[bits],
            gradients=gradients,
            learning_rate=learning_rate,
            eps=eps,
            table=tables[table],
            seed=seed,
            tensor_id=tensor_id,
            step=step,
            second=second_rounding,
            summed=summed,
        )
        updates.append(
            {
                "table": table,
                "bits": bits,
                "gradients": _bits(*gradients),
                "learning_rate": _bits(learning_rate)[0],
                "eps": _bits(eps)[0],
                "seed": f"{seed:016x}",
                "tensor_id": tensor_id,
                "step": step,
                "second": second_rounding,
                "summed": summed,
                "integers": " ".join(map(str, integers)),
                "moved": " ".join(map(str, moved)),
            }
        )
    return {
        "tables": [
            {"eps": eps, "bits": bits, "entries": " ".join(hexadecimal(table))}
            for (eps, bits), table in zip(TABLES, tables, strict=True)
        ],
        "draws": draws,
        "updates": updates,
    }


if __name__ == "__main__":
    sys.exit(write(OUTPUT, vectors()))
