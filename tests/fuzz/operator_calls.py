"""Calls of the operators that programs have, as fuzz_operators reads them: one that is in order for each operator."""

from __future__ import annotations

from collections.abc import Sequence

FLOAT, LONG, BYTE, BFLOAT16, CHAR, HALF, INT = range(7)
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64, 96, 128, 33, 2**31 - 1)
ZEROS, SAME, ASCENDING = 0, 1, 2
SIXTEENTHS = 0x10


def number(value: int) -> bytes:
    return (
        bytes([value + 16]) if -16 <= value < 0xE0 else b"\xf8" + (value % 2**64).to_bytes(8, "big")
    )


def tensor(
    dtype: int, shape: Sequence[int], values: int = ZEROS, first: int = 0, *, bound: bool = False
) -> bytes:
    head = bytes([dtype, len(shape) | (0x40 if bound else 0), *map(SIZES.index, shape), values])
    return head + (b"" if values % 4 == ZEROS else number(first))


def floats(*shape: int) -> bytes:
    return tensor(FLOAT, shape, ASCENDING | SIXTEENTHS, -8)


def room(*shape: int, dtype: int = FLOAT) -> bytes:
    return tensor(dtype, shape, bound=True)


def one(dtype: int, value: int) -> bytes:
    return tensor(dtype, (1,), SAME | (SIXTEENTHS if dtype == FLOAT else 0), value)


def call(operator: int, *arguments: bytes) -> bytes:
    return bytes([operator, 0]) + b"".join(b"\x00" + argument for argument in arguments)


def beside(made: bytes, place: int) -> bytes:
    """A tensor in the memory of another, the one of number ``place`` modulo how many there are."""
    return made[:-1] + bytes([0xE0 + place])


def without_memory(made: bytes) -> bytes:
    return made[: made.index(ZEROS, 2 + made[1] % 16)] + b"\xff"


NONE, ON, OFF = b"\x00", b"\x01", b"\x00"
SEED, STEP, EPSILON = one(LONG, 7), one(LONG, 3), one(FLOAT, 1)


def _linears(first: int, codes: bytes, scales: bytes) -> dict[str, bytes]:
    return {
        "forward": call(first, floats(2, 3, 64), codes, scales, NONE, room(2, 3, 4)),
        "bias": call(first, floats(3, 64), codes, scales, b"\x01" + floats(4), room(3, 4)),
        "backward": call(first + 1, floats(3, 4), codes, scales, room(3, 64)),
    }


def calls() -> dict[str, bytes]:
    """Names and inputs."""
    int4 = (tensor(BYTE, (4, 32), ASCENDING, 17), tensor(BFLOAT16, (4, 2), SAME, 16128))
    int8 = (tensor(CHAR, (4, 64), ASCENDING, -9), tensor(FLOAT, (4,), SAME | SIXTEENTHS, 3))
    table = tensor(INT, (8, 2), ASCENDING, 1)
    noise = (table, one(LONG, 5), EPSILON, SEED, STEP)
    gradients = tensor(FLOAT, (2,), SAME | SIXTEENTHS, 4)
    labels = tensor(LONG, (3,), ASCENDING, 1)
    half = tensor(HALF, (4, 3), SAME, 100)
    code = [1, 6, 1, 1, 0, 1, 2, 1, 1, 1, 1, 2, 1, 0, -1, 0]
    rows = (
        bytes([1]) + floats(6),
        bytes([len(code)]) + b"".join(map(number, code)),
        bytes([1]),
        room(6),
    )
    entries = (tensor(HALF, (6,), SAME, 100), tensor(INT, (6,), ASCENDING, 5))
    span = tensor(LONG, (2,), ASCENDING, 0)
    tiles = (floats(2, 33, 4, 5), floats(2, 33, 2, 5), floats(2, 33, 2, 6))
    found = {
        "update": call(0, floats(4, 3), gradients, EPSILON, SEED, STEP, number(5), room(4, 3)),
        "update-half": call(
            1, half, gradients, EPSILON, SEED, STEP, number(5), room(4, 3, dtype=HALF)
        ),
        "perturb": call(
            2, floats(4, 3), EPSILON, SEED, STEP, number(5), number(2), room(4, 4, 3)
        ),
        "perturb-one": call(
            3, floats(4, 3), EPSILON, one(FLOAT, 16), SEED, STEP, one(LONG, 1), number(5), room(1, 4, 3)
        ),
        "logprobs": call(4, floats(2, 3, 12), labels, room(2, 3), room(2, 3)),
        "gradient": call(
            5, floats(3, 12), labels, floats(3), room(3), room(3), room(3, 12)
        ),
        "matmul": call(10, floats(2, 3, 4), floats(2, 4, 5), OFF, OFF, room(2, 3, 5)),
        "matmul-transposed": call(10, floats(4, 3), floats(5, 4), ON, ON, room(3, 5)),
        "sparse": call(
            11, floats(4, 8), floats(4, 6), *entries, span, EPSILON, SEED, STEP,
            number(5), number(2), number(6), room(4, 8),
        ),
        "round": call(14, floats(3, 8), tensor(FLOAT, (3,), ASCENDING | SIXTEENTHS, 1), room(3, 8)),
        "embedding": call(15, *int4, tensor(LONG, (2, 2), ASCENDING, 0), room(2, 2, 64)),
        "positions": call(
            16, floats(2, 8, 8), tensor(LONG, (2, 4)), number(1), number(2), OFF, room(2, 4, 4)
        ),
        "rows": call(17, *rows),
        "rounded": call(19, floats(3, 64), *int4, b"\x01" + floats(4), room(3, 4)),
        "attention": call(
            20, floats(1, 4, 2, 8), floats(1, 2, 2, 8), floats(1, 2, 2, 12), floats(2, 16, 8), floats(2, 16, 12),
            one(LONG, 5), NONE, number(4), number(0), number(0), room(1, 4, 2, 12),
        ),
        "matmul-added": call(26, floats(2, 3, 5), floats(2, 3, 4), floats(2, 4, 5), OFF, OFF, room(2, 3, 5)),
        "tiles": call(
            24, *tiles, b"\x01" + floats(2, 33), number(4), ON, number(5), room(2, 33, 4, 6), room(2, 4, 33)
        ),
        "tiles-gradient": call(
            25, *tiles, NONE, floats(2, 33, 4, 6), floats(2, 4, 33), floats(2, 33, 4, 6),
            number(4), OFF, number(0), room(2, 33, 4, 5), room(2, 33, 2, 5), room(2, 33, 2, 6),
        ),
    }  # fmt: skip
    scored = floats(2, 3, 64)
    scores = (labels, room(2, 3), room(2, 3))
    found["scores"] = call(21, scored, floats(4, 64), NONE, number(4), number(0), *scores)
    for name, operator in (("scores-int4", 22), ("scores-rounded", 23)):
        found[name] = call(
            operator, scored, *int4, b"\x01" + floats(4), number(4), number(8), *scores
        )
    for kind, first, weight in (("int4", 6, int4), ("int8", 8, int8)):
        for name, content in _linears(first, *weight).items():
            found[f"{kind}-{name}"] = content
    for kind, operator, weight in (("int4", 12, int4), ("int8", 13, int8)):
        found[f"grid-{kind}"] = call(
            operator, floats(4, 64), *weight, NONE, *noise, number(2), room(4, 4)
        )
    return found


def finds() -> dict[str, bytes]:
    """Calls that once read or wrote outside of memory, failed an assertion, or did not end."""
    known = calls()
    labels = tensor(LONG, (3,), ASCENDING, 1)
    int8 = (tensor(CHAR, (0, 0)), tensor(FLOAT, (0,)))
    most = 2**31 - 1
    found = {
        "labels-under-logprobs": call(
            4, floats(2, 3, 12), labels, beside(room(2, 3), 1), room(2, 3)
        ),
        "labels-under-scores": call(
            21, floats(2, 3, 64), floats(12, 64), NONE, number(4), number(0), labels, beside(room(2, 3), 2), room(2, 3)
        ),
        "first-beyond": call(
            16, floats(2, 8, 8), tensor(LONG, (2, 4)), number(2**63 - 1), number(1), OFF, room(2, 4, 4)
        ),
        "rows-of-nothing": call(
            8, tensor(FLOAT, (most, most, 0)), *int8, NONE, tensor(FLOAT, (most, most, 0))
        ),
        "table-of-nothing": call(
            16, tensor(FLOAT, (most, most, 0)), tensor(LONG, (1, 0)), number(2), number(1), OFF,
            tensor(FLOAT, (most, most, 0)),
        ),
        "no-memory": call(14, without_memory(room(3, 8)), tensor(FLOAT, (3,), SAME, 1), room(3, 8)),
    }  # fmt: skip
    for name, content in known.items():
        found[f"{name}-one-argument"] = content[:1] + b"\xf1" + content[2:]
        found[f"{name}-a-number-first"] = content[:2] + b"\xfa\x20" + content[3:]
    return found
