"""Split bundles whose programs perturb, and take all copies as rows of one call; made by hand, run by torch.

An embedding, two layers with a few trained weights each, and a head. All trained weights lie in one float16 slot; a
float32 one beside it is added in both layers, and the head reads a frozen one of float16.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from tests.support import bundles
from tests.support.bundles import stage_program, tensor_spec
from zoexport.core import rng
from zoexport.session import Tensor

VOCAB, HIDDEN, ENTRIES, QUERIES, SEED = 13, 6, 4, 2, 7
LENGTHS, LABEL_ROWS = (4, 8), 3
VALUES, SHIFT, BIAS = "sparse.values", "shift", "bias"
#: Name -> role, tensor id, dtype, shape.
SLOTS: dict[str, tuple[str, int, str, tuple[int, ...]]] = {
    VALUES: ("trainable", 4, "float16", (9,)),
    SHIFT: ("trainable", 8, "float32", (HIDDEN,)),
    BIAS: ("frozen", 2, "float16", (VOCAB,)),
}
TRAINED = (VALUES, SHIFT)
STAGES = ("embed", "0", "1", "head")
Values = dict[str, torch.Tensor]


def initial_values() -> dict[str, NDArray[Any]]:
    """In each slot's dtype."""
    generator = np.random.default_rng(14)
    return {
        name: (0.5 * generator.normal(size=shape)).astype(dtype)
        for name, (_, _, dtype, shape) in SLOTS.items()
    }


@functools.cache
def weights() -> Values:
    generator = torch.Generator().manual_seed(19)
    found = {
        "embed": torch.randn(VOCAB, HIDDEN, generator=generator),
        "head": torch.randn(HIDDEN, VOCAB, generator=generator),
    }
    for layer in range(2):
        places = torch.randperm(HIDDEN * HIDDEN, generator=generator)[:ENTRIES]
        entries = torch.arange(ENTRIES) + layer * (ENTRIES + 1)
        found[f"{layer}.weight"] = torch.randn(HIDDEN, HIDDEN, generator=generator) / 3
        found[f"{layer}.places"] = places.to(torch.int32)
        found[f"{layer}.entries"] = entries.to(torch.int32)
    return found


# ---- the definitions, one sequence and one copy at a time ------------------------------------------------------------


def logprobs(state: Mapping[str, NDArray[Any]], tokens: list[int]) -> NDArray[np.float64]:
    """(tokens, vocabulary), in float64."""
    w = {name: tensor.numpy() for name, tensor in weights().items()}
    hidden = w["embed"][tokens].astype(np.float64)
    for layer in range(2):
        weight = w[f"{layer}.weight"].astype(np.float64).ravel()
        weight[w[f"{layer}.places"]] = state[VALUES][w[f"{layer}.entries"]]
        mean = np.cumsum(hidden, axis=0) / np.arange(1, len(tokens) + 1)[:, None]
        hidden = hidden + np.tanh(mean @ weight.reshape(HIDDEN, HIDDEN) + state[SHIFT])
    logits = hidden @ w["head"] + state[BIAS].astype(np.float64)
    return np.asarray(logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)))


def noise(name: str, step: int, query: int) -> bundles.Floats:
    _, tensor_id, _, shape = SLOTS[name]
    return rng.normals(SEED, tensor_id, query, step, int(np.prod(shape))).reshape(shape)


def updated(
    state: Mapping[str, NDArray[Any]], gradients: list[float], learning_rate: float, step: int
) -> dict[str, NDArray[Any]]:
    """The state after the update of ``step``: float32 arithmetic, and float16 values rounded once."""
    found = dict(state)
    g = np.array(gradients, np.float32)
    scale = np.float32(learning_rate) / np.float32(len(g))
    for name in TRAINED:
        total = g[0] * noise(name, step, 0)
        for query in range(1, len(g)):
            total = total + g[query] * noise(name, step, query)
        moved = state[name].astype(np.float32) - scale * total
        found[name] = moved.astype(state[name].dtype)
    return found


# ---- the programs ----------------------------------------------------------------------------------------------------


def layer(v: Values, x: torch.Tensor, z: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Rows of all copies, each with its own weight and shift; without a perturbation rows of any kind."""
    copies = 2 * QUERIES
    signs = torch.tensor([1.0, -1.0]).repeat(QUERIES)
    moved = {
        name: v[local].float() + (signs * v["epsilon"])[:, None] * z[name].repeat_interleave(2, 0)
        for local, name in (("values", VALUES), ("shift", SHIFT))
    }
    taken = moved[VALUES][:, v["entries"].long()]
    flat = v["weight"].reshape(1, -1).expand(copies, -1)
    weight = flat.scatter(1, v["places"].long()[None].expand(copies, -1), taken)
    rows, length, _ = x.shape
    mean = x.cumsum(1) / torch.arange(1, length + 1)[:, None]
    product = mean.reshape(copies, -1, HIDDEN) @ weight.reshape(copies, HIDDEN, HIDDEN)
    return x + torch.tanh(product + moved[SHIFT][:, None]).reshape(rows, length, HIDDEN)


def head(v: Values) -> list[torch.Tensor]:
    found = torch.log_softmax(v["x"] @ v["weight"] + v["bias"].float(), dim=-1)
    picked = found.gather(1, v["labels"][:, None])[:, 0]
    return [picked, (found.argmax(-1) == v["labels"]).float()]


def update(v: Values, z: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    found = []
    for name in TRAINED:
        total = v["gradients"][0] * z[name][0]
        for query in range(1, QUERIES):
            total = total + v["gradients"][query] * z[name][query]
        moved = v[name].float() - (v["rate"] / QUERIES) * total
        found.append(moved.to(v[name].dtype))
    return found


def run_program(family: str, given: Values) -> list[torch.Tensor]:
    """A program's outputs. Noise that it is not given it makes of seed and step."""
    if family == "embed.forward":
        return [given["weight"][given["tokens"]]]
    if family == "head.forward":
        return head(given)
    role = "previous_noise" if family == "update" else "noise"
    z = {name: given[f"{role}.{name}"] for name in TRAINED if f"{role}.{name}" in given}
    if not z:
        back = 1 if family == "update" else 0
        z = {name: _made(name, given, back) for name in TRAINED}
    return update(given, z) if family == "update" else [layer(given, given["x"], z)]


def _made(name: str, given: Values, back: int) -> torch.Tensor:
    assert int(given["seed"]) == SEED
    step = int(given["step"]) - back
    return torch.tensor(np.stack([noise(name, max(step, 0), query) for query in range(QUERIES)]))


class StackedModel:
    """An engine for the bundles below. ``calls`` records what it was given, by program."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Values]] = []

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        given = {name: torch.from_numpy(bundles.array(tensor)) for name, tensor in inputs.items()}
        self.calls.append((program, given))
        for tensor, value in zip(
            outputs.values(), run_program(program.split("@")[0], given), strict=True
        ):
            tensor.data.cast("B")[:] = value.contiguous().numpy().tobytes()


# ---- the bundle ------------------------------------------------------------------------------------------------------


def _state(local: str, name: str) -> dict[str, Any]:
    _, _, dtype, shape = SLOTS[name]
    return tensor_spec(local, "state", dtype, *shape)


def _noise(role: str, given: bool) -> list[dict[str, Any]]:
    if not given:
        return [tensor_spec("seed", "seed", "int64", 1), tensor_spec("step", "step", "int64", 1)]
    return [
        tensor_spec(f"{role}.{name}", role, "float32", QUERIES, *SLOTS[name][3]) for name in TRAINED
    ]


def programs(rows: int, noise_given: bool, update_program: bool) -> list[dict[str, Any]]:
    found = []
    for length in LENGTHS:
        hidden = (rows, length, HIDDEN)
        tokens = tensor_spec("tokens", "tokens", "int64", rows, length)
        embed = tensor_spec("weight", "weight", "float32", VOCAB, HIDDEN)
        y = tensor_spec("y", "activation", "float32", *hidden)
        found.append(stage_program("embed.forward", length, [tokens, embed], [y]))
        inputs = [
            tensor_spec("x", "activation", "float32", *hidden),
            tensor_spec("weight", "weight", "float32", HIDDEN, HIDDEN),
            tensor_spec("places", "weight", "int32", ENTRIES),
            tensor_spec("entries", "weight", "int32", ENTRIES),
            _state("values", VALUES),
            _state("shift", SHIFT),
            tensor_spec("epsilon", "epsilon", "float32", 1),
            *_noise("noise", noise_given),
        ]
        found.append(stage_program("layer.forward", length, inputs, [y]))
    inputs = [
        tensor_spec("x", "activation", "float32", LABEL_ROWS, HIDDEN),
        tensor_spec("labels", "label_tokens", "int64", LABEL_ROWS),
        tensor_spec("weight", "weight", "float32", HIDDEN, VOCAB),
        _state("bias", BIAS),
    ]
    outputs = [
        tensor_spec("logprobs", "label_logprobs", "float32", LABEL_ROWS),
        tensor_spec("is_argmax", "label_is_argmax", "float32", LABEL_ROWS),
    ]
    found.append(stage_program("head.forward", None, inputs, outputs))
    if update_program:
        states = [_state(name, name) for name in TRAINED]
        inputs = [
            *states,
            tensor_spec("gradients", "projected_gradients", "float32", QUERIES),
            tensor_spec("rate", "learning_rate", "float32", 1),
            *_noise("previous_noise", noise_given),
        ]
        program = stage_program("update", None, inputs, states)
        found.append({k: v for k, v in program.items() if k not in ("family", "length")})
    return found


def write_bundle(
    folder: Path,
    *,
    rows: int = 2,
    max_labels: int = 8,
    noise_given: bool = False,
    update_program: bool = False,
    engine: str = "test",
    program: bytes = b"programs",
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write a bundle of ``rows`` rows a copy, whose programs get their noise or make it."""
    copies = 2 * QUERIES
    stages = []
    for stage in STAGES:
        kind = "layer" if stage in ("0", "1") else stage
        bind = {"weight": stage if kind != "layer" else f"{stage}.weight"}
        if kind == "layer":
            bind |= {local: f"{stage}.{local}" for local in ("places", "entries")}
            bind |= {"values": VALUES, "shift": SHIFT}
        if kind == "head":
            bind["bias"] = BIAS
        forward = f"{kind}.forward"
        stages.append({"name": stage, "forward": forward, "backward": None, "bind": bind})
    own = {
        "max_length": LENGTHS[-1],
        "num_queries": QUERIES,
        "eps": 2e-2,
        "learning_rate": 2e-2,
        "seed": SEED,
    }
    return bundles.write_split(
        folder,
        save({name: torch.tensor(v) for name, v in initial_values().items()}),
        save(weights()),
        program,
        method="stacked",
        model="stacked",
        vocab=VOCAB,
        settings={**own, **(settings or {})},
        engine=engine,
        programs=programs(copies * rows, noise_given, update_program),
        stages=stages,
        step=bundles.spsa(QUERIES, "call", settings),
        lengths=list(LENGTHS),
        label_rows=LABEL_ROWS,
        state=[bundles.slot(name, *SLOTS[name]) for name in SLOTS],
        rows=copies * rows,
        max_labels=max_labels,
        copies=copies,
    )
