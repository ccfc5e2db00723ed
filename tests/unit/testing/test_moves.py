"""The operations of the Core ML evaluator that move elements, saved in a package and read back, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.coreml_cases import (
    WHOLE,
    Case,
    Compiled,
    X,
    case,
    compiled_fixture,
    integers,
    op,
    unary,
)
from tests.support.coreml_packages import mb
from tests.support.tiny_models import fixed
from zoexport.testing.moves import RULES

PLACES = integers([0, 2], [1, -1])
SHAPES = [
    unary("band_part", lambda x: x.tril(1).triu(-1), lower=1, upper=1),
    unary("band_part", torch.tril, lower=-1, upper=0),
    unary("band_part", torch.triu, lower=0, upper=-1),
    case(
        lambda x, y, dtype: mb.concat(values=(x, y), axis=1),
        lambda x, y: torch.cat([x, y], 1),
        X,
        2 * X,
    ),
    case(lambda x, dtype: mb.concat(values=[x], axis=0), lambda x: x, X),
    case(
        lambda x, y, dtype: mb.concat(values=(x, y), axis=-1, interleave=True),
        lambda x, y: torch.stack([x, y], -1).flatten(-2),
        X,
        2 * X,
    ),
    unary("expand_dims", lambda x: x[None, :, :, None], axes=[0, -2]),
    unary("squeeze", lambda x: x[:, 0], X[:, :1], axes=[1]),
    unary("squeeze", lambda x: x[:, 0, :, 0], X[:, :1, :, None], axes=[1, -1]),
    unary("squeeze", lambda x: x[0], X[:1]),
    case(
        lambda shape, dtype: mb.fill(shape=shape, value=dtype(0.5)),
        lambda shape: torch.full((2, 3), 0.5),
        integers(2, 3),
    ),
    case(
        lambda x, dtype: mb.fill_like(ref_tensor=x, value=dtype(0.5)),
        lambda x: torch.full((2, 3, 4), 0.5),
        WHOLE,
    ),
    unary("pad", lambda x: F.pad(x, (1, 2)), pad=[1, 2], mode="constant", constant_val=0.0),
    unary(
        "pad",
        lambda x: F.pad(x, (3, 4, 1, 2), value=0.5),
        pad=[0, 0, 1, 2, 3, 4],
        mode="constant",
        constant_val=0.5,
    ),
    unary("pad", lambda x: F.pad(x, (1, 2), mode="reflect"), pad=[0, 0, 1, 2], mode="reflect"),
    unary("pad", lambda x: F.pad(x, (1, 2), mode="replicate"), pad=[0, 0, 1, 2], mode="replicate"),
    case(
        lambda x, dtype: mb.range_1d(start=mb.squeeze(x=x), end=9, step=2),
        lambda x: torch.arange(1, 9, 2),
        integers(1),
    ),
    unary("reshape", lambda x: x.reshape(4, 6), shape=[4, 6]),
    unary("reshape", lambda x: x.reshape(2, 12), shape=[2, -1]),
    unary("reverse", lambda x: x.flip(0, 2), axes=[0, 2]),
    unary("reverse", lambda x: x.flip(0, 1, 2)),
    unary("slice_by_size", lambda x: x[1:2, 1:, :3], begin=[1, 1, 0], size=[1, -1, 3]),
    unary("split", lambda x: x.split(2, 2), num_splits=2, axis=-1),
    unary("split", lambda x: x.split([1, 3], 2), split_sizes=[1, 3], axis=2),
    case(
        lambda x, y, dtype: mb.stack(values=(x, y), axis=-1),
        lambda x, y: torch.stack([x, y], -1),
        X,
        2 * X,
    ),
    unary("tile", lambda x: x.repeat(2, 1, 3), reps=[2, 1, 3]),
    unary("transpose", lambda x: x.permute(2, 0, 1), perm=[2, 0, 1]),
    unary("transpose", lambda x: x.mT, perm=[0, -1, -2]),
]
_SLICES = [
    ({"begin": [0, 1, -3], "end": [2, 3, -1]}, (slice(None), slice(1, 3), slice(-3, -1))),
    (
        {
            "begin": [1, 7, 3],
            "end": [7, 2, 0],
            "stride": [1, 1, -2],
            "begin_mask": [False, True, False],
            "end_mask": [True, False, False],
        },
        (slice(1, None), slice(2), slice(3, 0, -2)),
    ),
    (
        {
            "begin": [-1, 0, 0],
            "end": [0, 0, 0],
            "stride": [1, -1, -1],
            "begin_mask": [False, True, True],
            "end_mask": [False, True, True],
            "squeeze_mask": [True, False, False],
        },
        (-1, slice(None, None, -1), slice(None, None, -1)),
    ),
]


def sliced(x: torch.Tensor, at: Any) -> torch.Tensor:
    return torch.from_numpy(x.numpy()[at].copy())


def updated(x: torch.Tensor, update: torch.Tensor, at: Any) -> torch.Tensor:
    changed = x.numpy().copy()
    changed[at] = update.numpy()
    return torch.from_numpy(changed)


SLICES = [
    entry
    for settings, at in _SLICES
    for entry in (
        unary("slice_by_index", lambda x, at=at: sliced(x, at), **settings),
        case(
            op("slice_update", "x", "update", **settings),
            lambda x, update, at=at: updated(x, update, at),
            X,
            -sliced(X, at),
        ),
    )
]


def scatter(
    kind: str,
    expected: Any,
    data: torch.Tensor,
    indices: torch.Tensor,
    updates: Any,
    **settings: Any,
) -> list[Case]:
    """Both modes; ``expected`` takes the inputs and whether updates are added."""
    return [
        case(
            op(kind, "data", "indices", "updates", mode=mode, **settings),
            lambda data, indices, updates, add=mode == "add": expected(
                data.clone(), indices.long(), updates, add
            ),
            data,
            indices,
            fixed("updates", updates),
        )
        for mode in ("add", "update")
    ]


def put(at: Any) -> Any:
    """``data[at(indices)]`` with the updates put or added there."""

    def expected(
        data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, add: bool
    ) -> torch.Tensor:
        data[at(indices)] = updates + data[at(indices)] if add else updates
        return data

    return expected


def scattered_along(
    data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, add: bool
) -> torch.Tensor:
    for place in np.ndindex(*indices.shape):
        target = (place[0], int(indices[place]), place[2])
        data[target] = updates[place] + (data[target] if add else 0)
    return data


PAIRS = integers([0, 2], [1, 0])
INDICES = [
    case(op("gather", "x", "indices", axis=1), lambda x, at: x[:, at.long()], X, PLACES),
    case(
        op("gather", "x", "indices", axis=-1),
        lambda x, at: x[..., at.long()],
        WHOLE,
        integers(3, 0),
    ),
    case(
        lambda x, at, dtype: mb.gather(x=x, indices=mb.squeeze(x=at), axis=0),
        lambda x, at: x[1],
        X,
        integers(1),
    ),
    case(
        op("gather", "x", "indices", axis=2, batch_dims=1),
        lambda x, at: torch.stack([x[i][:, at[i].long()] for i in range(2)]),
        X,
        PLACES,
    ),
    case(
        op("gather_along_axis", "x", "indices", axis=1),
        lambda x, at: x.gather(1, at.long() % 3),
        X,
        integers([[0, 2, -1, 1]], [[-3, 0, 2, 2]]),
    ),
    case(
        op("gather_nd", "x", "indices"), lambda x, at: x[at[:, 0].long(), at[:, 1].long()], X, PAIRS
    ),
    case(
        op("gather_nd", "x", "indices", batch_dims=1),
        lambda x, at: torch.stack([x[i][tuple(at[i].long())] for i in range(2)]),
        X,
        PAIRS,
    ),
    *scatter("scatter", put(lambda at: (slice(None), at)), X, integers(2, 0), (2, 2, 4), axis=1),
    *scatter(
        "scatter", put(lambda at: (slice(None), slice(None), at)), X, PLACES, (2, 3, 2, 2), axis=2
    ),
    *scatter("scatter_nd", put(lambda at: (at[:, 0], at[:, 1])), X, PAIRS, (2, 4)),
    *scatter(
        "scatter_along_axis",
        scattered_along,
        X,
        integers([[2, 0, 1, 1]], [[0, 0, 2, 1]]),
        (2, 1, 4),
        axis=1,
    ),
    # Where an index is there twice, both updates are added.
    case(
        op("scatter_along_axis", "data", "indices", "updates", axis=0, mode="add"),
        lambda data, at, updates: data + torch.stack([updates[0] + updates[1], updates[2]]),
        fixed("sums", (2,)),
        integers(0, 0, 1),
        fixed("added", (3,)),
    ),
]

CASES = [*SHAPES, *SLICES, *INDICES]

compiled = compiled_fixture(CASES)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_operation_computes_what_pytorch_does(compiled: Compiled, number: int) -> None:
    compiled.check(number, CASES[number])


def test_every_rule_has_a_case(compiled: Compiled) -> None:
    assert compiled.operations() >= set(RULES)
