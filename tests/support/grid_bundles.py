"""Split bundles that train integers (docs/noise.md); made by hand, run by numpy.

An embedding, two layers of INT4 that share a program, one of INT8, and a head.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from tests.support import bundles
from tests.support.bundles import stage_program, tensor_spec
from tests.support.grid_integers import (
    EPS,
    HIDDEN,
    SEED,
    TABLE,
    TABLE_SIZE,
    TRAINED,
    Arrays,
    clamped,
    initial_integers,
    integers,
    roundings,
    table,
)
from zoexport.session import Tensor

VOCAB, QUERIES, LR = 13, 2, 2.0
LENGTHS, LABEL_ROWS = (4, 8), 3
BIAS = "bias"
#: Name -> role, tensor id, dtype, shape.
SLOTS: dict[str, tuple[str, int, str, tuple[int, ...]]] = {
    **{
        name: ("trainable", tensor_id, dtype, (HIDDEN, HIDDEN // (2 if dtype == "uint8" else 1)))
        for name, (tensor_id, dtype) in TRAINED.items()
    },
    TABLE: ("frozen", 1, "int32", (TABLE_SIZE, 2)),
    BIAS: ("frozen", 2, "float32", (VOCAB,)),
}
STAGES = ("embed", "0", "1", "2", "head")


def initial_values() -> Arrays:
    """In each slot's dtype."""
    bias = 0.5 * np.random.default_rng(15).normal(size=VOCAB)
    return {**initial_integers(), TABLE: table(), BIAS: bias.astype(np.float32)}


# ---- the programs ----------------------------------------------------------------------------------------------------


@functools.cache
def weights() -> Arrays:
    """The frozen tensors."""
    generator = np.random.default_rng(19)
    found: Arrays = {
        "embed": generator.normal(size=(VOCAB, HIDDEN)).astype(np.float32),
        "head": generator.normal(size=(HIDDEN, VOCAB)).astype(np.float32),
    }
    for layer, name in enumerate(TRAINED):
        size = 0.004 if SLOTS[name][2] == "int8" else 0.06
        found[f"{layer}.scales"] = (size * (1 + generator.random(HIDDEN))).astype(np.float32)
        found[f"{layer}.id"] = np.array([SLOTS[name][1]], np.int64)
    return found


def layer(x: NDArray[np.float64], matrices: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Rows of all copies (copies * R, L, H), each copy with its own matrix."""
    mean = np.cumsum(x, 1) / np.arange(1, x.shape[1] + 1)[:, None]
    each = np.split(mean, len(matrices))
    return x + np.tanh(np.concatenate([m @ w.T for m, w in zip(each, matrices, strict=True)]))


def matrices(
    name: str, codes: NDArray[Any], scales: NDArray[Any], step: int, eps: float
) -> list[NDArray[np.float64]]:
    """The weight of every copy, perturbed along Q1; the same one in all where nothing is perturbed."""
    whole = integers(name, codes)
    found = []
    for query in range(QUERIES):
        q1 = roundings(SLOTS[name][1], query, step, whole.size)[0].reshape(whole.shape)
        for sign in (1, -1):
            moved = clamped(name, whole + (sign * q1 if eps else 0))
            found.append(moved * scales.astype(np.float64)[:, None])
    return found


def head(x: NDArray[np.float64], bias: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities (rows, vocabulary)."""
    logits = x @ weights()["head"].astype(np.float64) + bias
    return np.asarray(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))


class GridModel:
    """An engine for the bundles below. ``calls`` records what it was given, by program."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Arrays]] = []

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        given = {name: bundles.array(tensor) for name, tensor in inputs.items()}
        self.calls.append((program, given))
        family = program.split("@")[0]
        if family == "embed.forward":
            found = [given["weight"][given["tokens"]]]
        elif family == "head.forward":
            scores = head(given["x"].astype(np.float64), given["bias"])
            labels = given["labels"]
            found = [scores[np.arange(len(labels)), labels], scores.argmax(-1) == labels]
        else:
            found = [self._layer(given)]
        for tensor, value in zip(outputs.values(), found, strict=True):
            tensor.data.cast("B")[:] = value.astype(np.float32).tobytes()

    @staticmethod
    def _layer(given: Arrays) -> NDArray[np.float64]:
        (name,) = (name for name in TRAINED if SLOTS[name][1] == int(given["id"][0]))
        np.testing.assert_array_equal(given["table"], table())
        eps = float(given["epsilon"][0])
        assert eps in (0.0, np.float32(EPS))
        assert int(given["seed"][0]) == SEED
        found = matrices(name, given["codes"], given["scales"], int(given["step"][0]), eps)
        return layer(given["x"].astype(np.float64), found)


def losses(
    state: Mapping[str, NDArray[Any]], step: int, examples: list[tuple[list[Any], int]]
) -> list[float]:
    """The loss of every copy, the mean over examples of one candidate each; by the definition, with no batches."""
    sums = np.zeros(2 * QUERIES)
    for candidates, target in examples:
        tokens, labels = candidates[target]
        x = np.repeat(weights()["embed"][tokens].astype(np.float64)[None], 2 * QUERIES, 0)
        for number, name in enumerate(TRAINED):
            scales = weights()[f"{number}.scales"]
            x = layer(x, matrices(name, state[name], scales, step, EPS))
        places = [t for t, label in enumerate(labels) if label != bundles.NO_LABEL]
        for copy in range(2 * QUERIES):
            found = head(x[copy], state[BIAS])
            sums[copy] -= np.mean([found[t, labels[t]] for t in places])
    return [float(total / len(examples)) for total in sums]


# ---- the bundle ------------------------------------------------------------------------------------------------------


def _state(local: str, name: str) -> dict[str, Any]:
    return tensor_spec(local, "state", SLOTS[name][2], *SLOTS[name][3])


def programs(rows: int) -> list[dict[str, Any]]:
    """For ``rows`` rows, those of all copies."""
    found = []
    for length in LENGTHS:
        x, y = (tensor_spec(n, "activation", "float32", rows, length, HIDDEN) for n in "xy")
        tokens = tensor_spec("tokens", "tokens", "int64", rows, length)
        embed = tensor_spec("weight", "weight", "float32", VOCAB, HIDDEN)
        found.append(stage_program("embed.forward", length, [tokens, embed], [y]))
        for family, name in (("int4", "codes.0"), ("int8", "codes.2")):
            inputs = [
                x,
                _state("codes", name),
                tensor_spec("scales", "weight", "float32", HIDDEN),
                tensor_spec("id", "weight", "int64", 1),
                _state("table", TABLE),
                tensor_spec("epsilon", "epsilon", "float32", 1),
                tensor_spec("seed", "seed", "int64", 1),
                tensor_spec("step", "step", "int64", 1),
            ]
            found.append(stage_program(f"{family}.forward", length, inputs, [y]))
    inputs = [
        tensor_spec("x", "activation", "float32", LABEL_ROWS, HIDDEN),
        tensor_spec("labels", "label_tokens", "int64", LABEL_ROWS),
        _state("bias", BIAS),
    ]
    outputs = [
        tensor_spec(name, f"label_{name}", "float32", LABEL_ROWS)
        for name in ("logprobs", "is_argmax")
    ]
    found.append(stage_program("head.forward", None, inputs, outputs))
    return found


def stages() -> list[dict[str, Any]]:
    """Layers bind the same local names to slots and weights of their own."""
    found = []
    for stage in STAGES:
        family, bind = stage, {"weight": "embed"} if stage == "embed" else {"bias": BIAS}
        if stage.isdigit():
            family = "int8" if stage == "2" else "int4"
            bind = {"codes": f"codes.{stage}", "table": TABLE}
            bind |= {local: f"{stage}.{local}" for local in ("scales", "id")}
        forward = f"{family}.forward"
        found.append({"name": stage, "forward": forward, "backward": None, "bind": bind})
    return found


def write_bundle(
    folder: Path, *, estimator: str = "q-rge2", settings: Mapping[str, Any] | None = None
) -> Path:
    """Write a bundle of two rows a copy."""
    copies = 2 * QUERIES
    own = {
        "max_length": LENGTHS[-1],
        "weights": "int4",
        "num_queries": QUERIES,
        "optimizer": "sgd",
        "eps": EPS,
        "learning_rate": LR,
        "seed": SEED,
    }
    return bundles.write_split(
        folder,
        save(initial_values()),
        save(weights()),
        method="quzo",
        model="grid",
        vocab=VOCAB,
        settings={**own, **(settings or {})},
        grid={"table": TABLE, "eps": EPS, "estimator": estimator},
        packing="int4",
        programs=programs(2 * copies),
        stages=stages(),
        step=bundles.spsa(QUERIES, "call", settings),
        lengths=list(LENGTHS),
        label_rows=LABEL_ROWS,
        state=[bundles.slot(name, *SLOTS[name]) for name in SLOTS],
        rows=2 * copies,
        max_labels=8,
        copies=copies,
    )
