"""Attention over a cache in torch's operators, for targets without a kernel, against the operator."""

from __future__ import annotations

import pytest
import torch

from tests.support.graphs import operators
from tests.support.rows import program
from tests.support.tiny_models import fixed
from zoexport.ir.graphs import zo
from zoexport.targets.cached_attention import write_cached_attention

CASES = [
    # heads, groups, tokens, width, width of values, rows, window
    pytest.param(6, 3, 1, 5, 7, 31, 0, id="one token"),
    pytest.param(4, 4, 8, 5, 5, 31, 0, id="a block"),
    pytest.param(6, 2, 1, 4, 4, 9, 9, id="a window"),
    pytest.param(4, 1, 8, 4, 4, 9, 9, id="a block in a window"),
    pytest.param(2, 2, 32, 4, 4, 9, 9, id="a block longer than the window"),
    pytest.param(2, 1, 8, 4, 4, 20, 33, id="a window longer than the context"),
]


@pytest.mark.parametrize(("softcap", "sloped"), [(0.0, False), (3.0, False), (0.0, True)])
@pytest.mark.parametrize(("heads", "groups", "tokens", "d", "e", "rows", "window"), CASES)
def test_it_is_the_operator(
    heads: int,
    groups: int,
    tokens: int,
    d: int,
    e: int,
    rows: int,
    window: int,
    softcap: float,
    sloped: bool,
) -> None:
    slopes = torch.linspace(0.1, 0.7, heads) if sloped else None
    given = [
        3 * fixed(name, shape)
        for name, shape in (
            ("q", (1, heads, tokens, d)),
            ("k", (1, groups, tokens, d)),
            ("v", (1, groups, tokens, e)),
            ("keys", (groups, rows, d)),
            ("values", (groups, rows, e)),
        )
    ]
    given += [torch.tensor([0])] + ([slopes] if slopes is not None else [])
    made = program(
        lambda *of: zo.cached_attention(
            *of[:6], of[6] if sloped else None, d**-0.5, softcap, window
        ),
        *given,
    )
    write_cached_attention(made)
    assert not [name for name in operators(made) if name.startswith("zoexport")]
    for first in (0, 1, 5, rows - 1, rows, rows + 4, 3 * rows):
        if first > rows and not 0 < window <= rows:
            continue
        given[5] = torch.tensor([first])
        expected = zo.cached_attention(*given[:6], slopes, d**-0.5, softcap, window)
        (found,) = made.module(*given)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
