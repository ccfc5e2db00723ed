"""Split bundles made by hand, and the small model, in torch, that a callback engine runs in place of their programs.

An embedding, four layers of three kinds with adapters, and a head. Each kind is a function of its inputs, weights and
slots: the engine runs them one at a time, ``logprobs`` all together for autograd.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from tests.support import bundles
from tests.support.bundles import tensor_spec
from zoexport.session import Bundle, Tensor

VOCAB, HIDDEN, RANK = 13, 8, 2
LENGTHS = (3, 5, 8)
COPIES = {"prge": "stage", "mezo": "one"}
Values = dict[str, torch.Tensor]
LAYERS = ("mix", "gate", "mix", "join")


def slots(embedding: bool = False, head: bool = False) -> dict[str, tuple[str, tuple[int, int]]]:
    """Role and shape of every slot, in the manifest's order."""
    found: dict[str, tuple[str, tuple[int, int]]] = {}
    for layer, kind in enumerate(LAYERS):
        found[f"lora_A.{layer}"] = ("frozen" if kind == "gate" else "trainable", (HIDDEN, RANK))
        found[f"lora_B.{layer}"] = ("trainable", (RANK, HIDDEN))
    if embedding:
        found["shift.embed"] = ("trainable", (1, HIDDEN))
    if head:
        found["shift.head"] = ("trainable", (1, HIDDEN))
    return found


def initial_values(**which: bool) -> dict[str, bundles.Floats]:
    generator = np.random.default_rng(4)
    return {
        name: (0.3 * generator.normal(size=shape)).astype(np.float32)
        for name, (_, shape) in slots(**which).items()
    }


@functools.cache
def weights() -> Values:
    generator = torch.Generator().manual_seed(9)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = {
        "embed": normal(VOCAB, HIDDEN),
        "head": normal(HIDDEN, VOCAB),
        "ids": torch.arange(VOCAB),
    }
    for layer, kind in enumerate(LAYERS):
        if kind != "gate":
            found[f"{layer}.weight"] = normal(HIDDEN, HIDDEN) / 3
        else:
            codes = torch.randint(0, 16, (HIDDEN, HIDDEN), generator=generator)
            found[f"{layer}.codes"] = codes.to(torch.uint8)
            found[f"{layer}.scale"] = (normal(HIDDEN) / 16).to(torch.bfloat16)
    return found


def embed(v: Values, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    hidden = v["weight"][v["ids"][tokens]]
    if "shift" in v:
        hidden = hidden + v["shift"]
    return hidden, hidden.cumsum(1)


def mix(v: Values, h: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return h + torch.tanh(_saved(v, "s0", _sum_of_mix(v, h, s))), s


def _sum_of_mix(v: Values, h: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    length = torch.arange(1, h.shape[1] + 1)[:, None]
    return s / length @ v["weight"] + (h @ v["A"]) @ v["B"]


def gate(v: Values, h: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weight = (v["codes"].float() - 8) * v["scale"].float()
    out = h + torch.tanh(h @ weight + (h @ v["A"]) @ v["B"])
    return out, s + out.cumsum(1)


def join(v: Values, h: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = _saved(v, "s1", s @ v["weight"])
    adapted = _saved(v, "s0", h @ v["A"])
    return (h + torch.sigmoid(s) * (adapted @ v["B"]) + torch.tanh(product),)


def _saved(v: Values, name: str, computed: torch.Tensor) -> torch.Tensor:
    """The value that a program was given in place of what it would compute; its gradients go through both."""
    return computed + (v[name] - computed).detach() if name in v else computed


def score(v: Values, rows: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if "shift" in v:
        rows = rows * (1 + v["shift"])
    logits = rows @ v["weight"]
    logprobs = torch.log_softmax(logits, dim=-1)
    picked = logprobs.gather(1, labels[:, None])[:, 0]
    return picked, (logits.argmax(-1) == labels).float()


FUNCTIONS = {"embed": embed, "mix": mix, "gate": gate, "join": join, "head": score}
#: What stages of these kinds can save, in order: sizes of the last dimension, and the values.
SAVED = {
    "mix": ((HIDDEN,), lambda v, h, s: (_sum_of_mix(v, h, s),)),
    "join": ((RANK, HIDDEN), lambda v, h, s: (h @ v["A"], s @ v["weight"])),
}
#: Name and kind of each stage. Two activations pass between them, one to the head.
STAGES = (("embed", "embed"), *((str(i), kind) for i, kind in enumerate(LAYERS)), ("head", "head"))


class SplitModel:
    """An engine for the bundles below. ``calls`` records the programs that ran."""

    def __init__(self, fail: int | None = None) -> None:
        self.calls: list[str] = []
        self.fail = fail

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        self.calls.append(program)
        if self.fail is not None and len(self.calls) > self.fail:
            raise RuntimeError("the device is gone")
        given = {name: _torch(tensor) for name, tensor in inputs.items()}
        results = run_program(program.split("@")[0], given, list(outputs))
        for name, value in zip(outputs, results, strict=True):
            _fill(outputs[name], value)


def run_program(family: str, given: Values, names: list[str]) -> list[torch.Tensor]:
    """The outputs ``names`` of a program, by autograd where it goes backward."""
    stage, direction = family.split(".")
    function = FUNCTIONS[stage]
    scored = ("logprobs", "is_argmax")
    if direction in ("forward", "saving"):
        taken = _activations(stage, given)
        saved = SAVED[stage][1](given, *taken) if direction == "saving" else ()
        return [*function(given, *taken), *saved]
    wanted = [name for name in names if name not in scored]
    sources = [name.removeprefix("d") for name in wanted]  # a slot's gradient has the slot's name
    given = {**given, **{name: given[name].detach().requires_grad_() for name in sources}}
    results = function(given, *_activations(stage, given))
    flowing = [*zip(results[:1], [given["weights"]], strict=True)] if stage == "head" else []
    if stage != "head":
        flowing = [(value, given[f"dy{i}"]) for i, value in enumerate(results)]
    flowing = [(value, factor) for value, factor in flowing if value.requires_grad]
    gradients = torch.autograd.grad(
        [value for value, _ in flowing],
        [given[name] for name in sources],
        [factor for _, factor in flowing],
        allow_unused=True,
        materialize_grads=True,
    )
    return [*(value.detach() for value in results if stage == "head"), *gradients]


def _activations(stage: str, given: Values) -> list[torch.Tensor]:
    if stage == "embed":
        return [given["tokens"]]
    found = [given[name] for name in ("x0", "x1") if name in given]
    return [*found, given["labels"]] if stage == "head" else found


def _torch(tensor: Tensor) -> torch.Tensor:
    found = torch.from_numpy(bundles.array(tensor))
    return found.view(torch.bfloat16) if tensor.data.format == "H" else found


def _fill(tensor: Tensor, values: torch.Tensor) -> None:
    flat = values.detach().float().contiguous().numpy().ravel()
    tensor.data[:] = memoryview(flat)


def bind(stage: str) -> dict[str, str]:
    """Local names of a stage's weights and slots."""
    if stage == "embed":
        return {"weight": "embed", "ids": "ids", "shift": "shift.embed"}
    if stage == "head":
        return {"weight": "head", "shift": "shift.head"}
    tensors = {name.split(".")[1]: name for name in weights() if name.startswith(f"{stage}.")}
    return {**tensors, "A": f"lora_A.{stage}", "B": f"lora_B.{stage}"}


def logprobs(
    state: Values, tokens: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor
) -> Any:
    """The whole model: log-probabilities of labels at flat positions, with the graph of autograd."""
    everything = {**weights(), **state}
    found: tuple[torch.Tensor, ...] = (tokens,)
    for stage, kind in STAGES[:-1]:
        local = {k: everything[v] for k, v in bind(stage).items() if v in everything}
        found = FUNCTIONS[kind](local, *found)
    local = {k: everything[v] for k, v in bind("head").items() if v in everything}
    return score(local, found[0].reshape(-1, HIDDEN)[positions], labels)[0]


def _programs(
    stage: str,
    rows: int,
    lengths: tuple[int, ...],
    label_rows: int,
    direction: str,
    trained: Mapping[str, Any],
) -> list[dict[str, Any]]:
    kind = dict(STAGES)[stage]
    backward = direction in ("backward", "from_saved")
    dtypes = {
        torch.float32: "float32",
        torch.int64: "int64",
        torch.uint8: "uint8",
        torch.bfloat16: "bfloat16",
    }
    tensors = weights()
    bound = []
    gradients = []
    for local, name in bind(stage).items():
        if name in tensors:
            shape = tuple(tensors[name].shape)
            bound.append(tensor_spec(local, "weight", dtypes[tensors[name].dtype], *shape))
        elif name in trained:
            role, shape = trained[name]
            bound.append(tensor_spec(local, "state", "float32", *shape))
            if role == "trainable":
                gradients.append(tensor_spec(local, "state_gradient", "float32", *shape))
    found = []
    for length in (None,) if kind == "head" else lengths:
        hidden = (label_rows, HIDDEN) if length is None else (rows, length, HIDDEN)
        taken = {"embed": 0, "head": 1}.get(kind, 2)
        given = {"head": 0, "join": 1}.get(kind, 2)
        inputs = [tensor_spec(f"x{i}", "activation", "float32", *hidden) for i in range(taken)]
        outputs = [tensor_spec(f"y{i}", "activation", "float32", *hidden) for i in range(given)]
        if kind == "embed":
            assert length is not None
            inputs.append(tensor_spec("tokens", "tokens", "int64", rows, length))
        if kind == "head":
            inputs.append(tensor_spec("labels", "label_tokens", "int64", label_rows))
            outputs = [
                tensor_spec("logprobs", "label_logprobs", "float32", label_rows),
                tensor_spec("is_argmax", "label_is_argmax", "float32", label_rows),
            ]
        inputs += bound
        if backward:
            if kind == "head":
                inputs = [*inputs, tensor_spec("weights", "label_weights", "float32", label_rows)]
            else:
                inputs = [
                    *inputs,
                    *(
                        tensor_spec(f"dy{i}", "output_gradient", "float32", *hidden)
                        for i in range(given)
                    ),
                ]
                outputs = []
            outputs = [
                *outputs,
                *(
                    tensor_spec(f"dx{i}", "input_gradient", "float32", *hidden)
                    for i in range(taken)
                ),
                *gradients,
            ]
        if direction in ("saving", "from_saved"):
            assert length is not None
            saved = [
                tensor_spec(f"s{i}", "saved", "float32", rows, length, size)
                for i, size in enumerate(SAVED[kind][0])
            ]
            inputs, outputs = (
                (inputs, [*outputs, *saved])
                if direction == "saving"
                else ([*inputs, *saved], outputs)
            )
        found.append(bundles.stage_program(f"{kind}.{direction}", length, inputs, outputs))
    return found


def write_bundle(
    folder: Path,
    *,
    method: str = "mebp",
    embedding: bool = False,
    head: bool = False,
    saving: bool = False,
    rows: int = 2,
    lengths: tuple[int, ...] = LENGTHS,
    label_rows: int = 3,
    settings: Mapping[str, Any] | None = None,
    engine: str = "test",
    program: bytes = b"programs",
    changes: Mapping[str, Any] | None = None,
) -> Path:
    """Write a split bundle.

    Args:
        embedding, head: whether these stages have a trainable slot.
        saving: whether stages of the kinds ``SAVED`` have programs that save results.
    """
    trained = slots(embedding, head)
    first_order = method == "mebp"
    programs = []
    stages = []
    for stage, kind in STAGES:
        has_backward = first_order and (stage != "embed" or embedding)
        saves = saving and kind in SAVED
        directions = ["forward", *(["backward"] if has_backward else [])]
        for direction in [*directions, *(["saving", "from_saved"] if saves else [])]:
            made = _programs(stage, rows, lengths, label_rows, direction, trained)
            programs += [p for p in made if p["name"] not in {q["name"] for q in programs}]
        tensors = weights()
        bound = {k: v for k, v in bind(stage).items() if v in trained or v in tensors}
        stages.append(
            {
                "name": f"model.{stage}",
                "forward": f"{kind}.forward",
                "backward": f"{kind}.backward" if has_backward else None,
                **({key: f"{kind}.{key}" for key in ("saving", "from_saved")} if saves else {}),
                "bind": bound,
            }
        )
    own = (
        {
            "optimizer": "adamw",
            "momentum": 0.0,
            "weight_decay": 0.0,
            "max_grad_norm": 0.0,
            "checkpoint_every": 1,
            "learning_rate": 0.02,
        }
        if first_order
        else {"num_queries": 2, "eps": 1e-2, "learning_rate": 0.1}
    )
    parts = {
        "engine": engine,
        "programs": programs,
        "stages": stages,
        **({} if first_order else {"step": bundles.spsa(2, COPIES.get(method, "one"), settings)}),
        "lengths": list(lengths),
        "label_rows": label_rows,
        "state": [
            bundles.slot(name, role, 3 * number + 2, "float32", shape, name.partition(".")[2])
            for number, (name, (role, shape)) in enumerate(trained.items())
        ],
        "rows": rows,
        "max_labels": rows * lengths[-1],
        "copies": 1,
        **(changes or {}),
    }
    return bundles.write_split(
        folder,
        bundles.safetensors(initial_values(embedding=embedding, head=head)),
        save(weights()),
        program,
        method=method,
        model="split",
        vocab=VOCAB,
        settings={"max_length": lengths[-1], "batch_size": rows, **own, **(settings or {})},
        **parts,
    )


def programs_of(bundle: Path) -> list[dict[str, Any]]:
    """The programs that a bundle's manifest names."""
    found: list[dict[str, Any]] = Bundle.open(bundle).manifest["programs"]
    return found
