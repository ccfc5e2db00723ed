"""The schemas of namespace ``zoexport``, declared to torch when this module is imported, and how to implement them.

``ops`` and the modules that it imports have the implementations. ``runtime_ops/bindings`` implements :data:`DEVICE` on
devices, under the same schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = "zoexport"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")

_GRID_LINEAR = (
    "Tensor x, Tensor codes, Tensor scales, Tensor? bias, Tensor table, Tensor number, Tensor epsilon, Tensor seed, "
    "Tensor step, int queries"
)

_UPDATE = (
    "Tensor master, Tensor gradients, Tensor learning_rate, Tensor seed, Tensor step, int tensor_id"
)
_PERTURB = "Tensor master, Tensor epsilon, Tensor seed, Tensor step, int tensor_id, int queries"
_INT4_LABELS = "Tensor x, Tensor codes, Tensor scales, Tensor? bias, float scale, float cap, Tensor label_tokens"
_ATTENTION = "Tensor q, Tensor k, Tensor v, Tensor? bias"
_SEEN = "float scale, bool causal, int window"
_LINEAR = "Tensor x, Tensor codes, Tensor scales, Tensor? bias"
_INPUT_GRADIENT = "Tensor dy, Tensor codes, Tensor scales"


def _layers(count: int) -> tuple[str, tuple[str, ...]]:
    """Of so many linear layers that read the same x."""
    numbers = range(1, count + 1)
    weights = (f"Tensor codes_{i}, Tensor scales_{i}, Tensor? bias_{i}" for i in numbers)
    return f"Tensor x, {', '.join(weights)}", tuple(f"out_{i}" for i in numbers)


#: Operators with a device implementation: name -> (arguments, names of the outputs).
DEVICE = {
    "zo_update": (_UPDATE, ("out",)),
    "zo_update_signs": (_UPDATE, ("out",)),
    "zo_update_half": (_UPDATE, ("out",)),
    "zo_perturb": (_PERTURB, ("out",)),
    "zo_perturb_signs": (_PERTURB, ("out",)),
    "zo_perturb_one": (
        "Tensor master, Tensor epsilon, Tensor sign, Tensor seed, Tensor step, Tensor query, int tensor_id",
        ("out",),
    ),
    "label_logprobs": ("Tensor logits, Tensor label_tokens", ("logprobs", "is_argmax")),
    "linear_label_logprobs": (
        "Tensor x, Tensor weight, Tensor? bias, float scale, float cap, Tensor label_tokens",
        ("logprobs", "is_argmax"),
    ),
    "linear_label_logprobs_int4": (_INT4_LABELS, ("logprobs", "is_argmax")),
    "rounded_linear_label_logprobs_int4": (_INT4_LABELS, ("logprobs", "is_argmax")),
    "label_gradient": (
        "Tensor logits, Tensor label_tokens, Tensor label_weights",
        ("logprobs", "is_argmax", "gradient"),
    ),
    "linear_int4": (_LINEAR, ("out",)),
    "linear_int4_bf16": (_LINEAR, ("out",)),
    "rounded_linear": (_LINEAR, ("out",)),
    "rounded_linears_2": _layers(2),
    "rounded_linears_3": _layers(3),
    "linear_int4_input_gradient": (_INPUT_GRADIENT, ("out",)),
    "linear_int4_bf16_input_gradient": (_INPUT_GRADIENT, ("out",)),
    "linear_int8": (_LINEAR, ("out",)),
    "linear_int8_bf16": (_LINEAR, ("out",)),
    "linear_int8_input_gradient": (_INPUT_GRADIENT, ("out",)),
    "linear_int8_bf16_input_gradient": (_INPUT_GRADIENT, ("out",)),
    "matmul": ("Tensor a, Tensor b, bool transpose_a, bool transpose_b", ("out",)),
    "add_matmul": (
        "Tensor c, Tensor a, Tensor b, bool transpose_a, bool transpose_b",
        ("out",),
    ),
    "sparse_add_mm": (
        "Tensor y, Tensor x, Tensor values, Tensor places, Tensor range, Tensor epsilon, Tensor seed, Tensor step, "
        "int tensor_id, int queries, int most",
        ("out",),
    ),
    "grid_linear_int4": (_GRID_LINEAR, ("out",)),
    "grid_linear_int8": (_GRID_LINEAR, ("out",)),
    "round_activations": ("Tensor x, Tensor format", ("out",)),
    "rotate_rows": ("Tensor x", ("out",)),
    "attention": (f"{_ATTENTION}, {_SEEN}", ("out", "lse")),
    "attention_gradient": (
        f"{_ATTENTION}, Tensor out, Tensor lse, Tensor gradient, {_SEEN}",
        ("dq", "dk", "dv"),
    ),
    "cached_attention": (
        "Tensor q, Tensor k, Tensor v, Tensor keys, Tensor values, Tensor position, Tensor? slopes, float scale, "
        "float softcap, int window",
        ("out",),
    ),
    "embedding_int4": ("Tensor codes, Tensor scales, Tensor indices", ("out",)),
}

#: Operators that a target lowers to its own: name -> arguments; each returns one tensor.
SEMANTIC = {
    "dequantize_int4": "Tensor codes, Tensor scales",
    "dequantize_int8": "Tensor codes, Tensor scales",
    "sparse_add_mm_given": (
        "Tensor y, Tensor x, Tensor values, Tensor places, Tensor range, Tensor? epsilon, Tensor? noise, int most"
    ),
}


def _declare_device(name: str, arguments: str, outputs: Sequence[str]) -> None:
    plain = ", ".join(["Tensor"] * len(outputs))
    marked = ", ".join(f"Tensor({chr(97 + i)}!)" for i in range(len(outputs)))
    written = ", ".join(f"Tensor({chr(97 + i)}!) {out}" for i, out in enumerate(outputs))
    if len(outputs) > 1:
        plain, marked = f"({plain})", f"({marked})"
    _LIBRARY.define(f"{name}({arguments}) -> {plain}", tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.define(f"{name}.out({arguments}, *, {written}) -> {marked}")


def _declare() -> None:
    for name, (arguments, outputs) in DEVICE.items():
        _declare_device(name, arguments, outputs)
    for name, arguments in SEMANTIC.items():
        _LIBRARY.define(f"{name}({arguments}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)


_declare()


def cpu(name: str) -> Callable[[F], F]:
    """Register a CPU implementation; an operator's out overload copies its results into ``out``."""

    def register(function: F) -> F:
        _LIBRARY.impl(name, function, "CPU")
        if name in DEVICE:
            _LIBRARY.impl(f"{name}.out", _out_variant(function, DEVICE[name][1]), "CPU")
        return function

    return register


def _out_variant(function: Callable[..., Any], outputs: Sequence[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **given: Any) -> Any:
        targets = [given.pop(name) for name in outputs]
        results = function(*arguments, **given)
        values = results if isinstance(results, tuple) else (results,)
        for target, value in zip(targets, values, strict=True):
            target.resize_(value.shape).copy_(value)
        return tuple(targets) if len(targets) > 1 else targets[0]

    return call


def fake(name: str) -> Callable[[F], F]:
    """Register what an operator's results look like."""

    def register(function: F) -> F:
        torch.library.register_fake(f"{NAMESPACE}::{name}", function, lib=_LIBRARY)
        return function

    return register


def declare_cpu(
    name: str,
    arguments: str,
    outputs: Sequence[str],
    run: Callable[..., Any],
    shapes: Callable[..., Any],
) -> None:
    """Declare a device operator together with what it computes and what its results look like."""
    _declare_device(name, arguments, outputs)
    _LIBRARY.impl(name, run, "CPU")
    _LIBRARY.impl(f"{name}.out", _out_variant(run, outputs), "CPU")
    fake(name)(shapes)


def differentiable(name: str, save: Callable[..., None]) -> Callable[[F], F]:
    """Register an operator's backward function; ``save(ctx, inputs, output)`` keeps what it needs."""

    def register(function: F) -> F:
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", function, setup_context=save, lib=_LIBRARY
        )
        return function

    return register
