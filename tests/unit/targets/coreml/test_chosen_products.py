"""Products with chosen weights in torch's operators, for programs that hold their weights, against the operator."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.graphs import operators
from tests.support.rows import program
from tests.support.tiny_models import fixed
from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.graphs import zo
from zoexport.targets.coreml.chosen_products import constants_of, write_chosen_products

N, K, QUERIES = 50, 40, 2
X, Y = fixed("x", (4 * QUERIES, 3, K)), fixed("y", (4 * QUERIES, 3, N))
RANGES = {"first": (0, 1400), "second": (1400, 1407), "none": (1407, 1407), "last": (1407, 1500)}
"""Weights of four layers of one shape: more than are computed together, few, none, and those at the end of all."""
VALUES, NOISE = fixed("values", (1500,)).half(), fixed("noise", (QUERIES, 1500))
PLACES = torch.cat(
    [
        torch.randperm(N * K, generator=torch.Generator().manual_seed(begin))[: end - begin]
        .sort()
        .values
        for begin, end in RANGES.values()
    ]
).int()
BIND = {"in2": "values", "in3": "places", "in4": "range."}
ROLES = {"in2": "state", "in3": "weight", "in4": "weight"}


def graph() -> tuple[LayerGraph, Program]:
    """A stage for each layer, of one program."""
    made = program(
        lambda y, x, v, p, r, e, z: zo.sparse_add_mm_given(y, x, v, p, r, e, z, 1400),
        *(Y, X, VALUES, PLACES, torch.tensor([0, 1400]), torch.tensor([0.1]), NOISE),
    )
    made.inputs = [
        dataclasses.replace(value, role=ROLES.get(value.name, value.role)) for value in made.inputs
    ]
    made.family = "layer"
    stages = [
        Stage(name, "layer", None, {**BIND, "in4": f"range.{name}"}) for name in (*RANGES, "head")
    ]
    stages[-1].forward = "head"
    weights = {f"range.{name}": torch.tensor(pair) for name, pair in RANGES.items()}
    found = LayerGraph({"layer": made}, {"places": PLACES, **weights}, [], {}, 3, 3, 8)
    found.stages = stages
    return found, made


@pytest.mark.parametrize("eps", [0.1, 0.0])
def test_every_layer_has_its_own(eps: float) -> None:
    made, one = graph()
    write_chosen_products(made)
    assert not [name for name in operators(one) if name.startswith("zoexport")]
    epsilon = torch.tensor([eps])
    known = {"in0": Y, "in1": X, "in2": VALUES, "in5": epsilon, "in6": NOISE}
    for stage, (begin, end) in zip(made.stages, RANGES.values(), strict=False):
        weights = {local: made.weights.get(name) for local, name in stage.bind.items()}
        values = [known.get(value.name, weights.get(value.name)) for value in one.inputs]
        (found,) = one.module(*values)
        span = torch.tensor([begin, end])
        expected = zo.sparse_add_mm_given(Y, X, VALUES, PLACES, span, epsilon, NOISE, 1400)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
        assert torch.equal(found, Y) == (begin == end)


def test_without_noise_there_is_one_copy() -> None:
    """Of two lengths, as programs that generate have."""
    made, _ = graph()
    programs = []
    for rows in (1, 3):
        one = program(
            lambda y, x, v, p, r: zo.sparse_add_mm_given(y, x, v, p, r, None, None, 1400),
            *(Y[:1, :rows], X[:1, :rows], VALUES, PLACES, torch.tensor([0, 1400])),
        )
        one.inputs = [
            dataclasses.replace(value, role=ROLES.get(value.name, value.role))
            for value in one.inputs
        ]
        one.name, one.family, one.length = f"layer@{rows}", "layer", rows
        programs.append(one)
    made.programs = {one.name: one for one in programs}
    write_chosen_products(made)
    for one in programs:
        given = {"in0": Y[:1, : one.length], "in1": X[:1, : one.length], "in2": VALUES}
        for stage, pair in zip(made.stages, RANGES.values(), strict=False):
            weights = {local: made.weights.get(name) for local, name in stage.bind.items()}
            values = [given.get(value.name, weights.get(value.name)) for value in one.inputs]
            (found,) = one.module(*values)
            given_span = (VALUES, PLACES, torch.tensor(pair), None, None, 1400)
            expected = zo.sparse_add_mm_given(given["in0"], given["in1"], *given_span)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


def test_stages_bind_what_their_program_reads() -> None:
    """Places and range are read no more; the stage of another program stays as it is."""
    made, one = graph()
    before = dict(made.stages[-1].bind)
    write_chosen_products(made)
    weights = {value.name for value in one.weights()}
    assert not weights & {"in3", "in4"}
    for stage in made.stages[:-1]:
        assert {*stage.bind} == {*weights, "in2"}
        shapes = {local: made.weights[stage.bind[local]].shape for local in weights}
        assert shapes == {value.name: value.shape for value in one.weights()}
    assert made.stages[-1].bind == before


def test_what_is_not_the_layers_adds_zeros_at_a_place_that_there_is() -> None:
    places = torch.tensor([2, 7, 1], dtype=torch.int32)
    found = constants_of(places, range(1, 6), 3, 5)
    assert {name: part.tolist() for name, part in found.items()} == {
        "entries": [1, 2, 0, 0, 0],
        "rows": [1, 0, 0, 0, 0],
        "columns": [2, 1, 0, 0, 0],
        "inside": [1, 1, 0, 0, 0],
    }
