"""Declaration of operators in namespace ``zoexport``.

One function declares an operator: its name, its schema (from the annotations) and its CPU implementation.
``runtime_ops/bindings`` implements the ``out`` overloads on devices, with the same names and schemas.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = "zoexport"
DEVICE: dict[str, tuple[str, ...]] = {}
"""Names of the outputs of each operator that devices implement."""
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def operator(shapes: Callable[..., Any], *outputs: str) -> Callable[[F], F]:
    """Declare an operator by its CPU implementation.

    Args:
        shapes: returns empty results; its parameters name the arguments that it needs.
        outputs: names of the outputs of the ``out`` overload; ``out`` by default.
    """
    return _declared(shapes, outputs or ("out",))


def semantic(shapes: Callable[..., Any]) -> Callable[[F], F]:
    """Declare an operator that every target replaces before lowering; devices do not implement it."""
    return _declared(shapes, ())


def _declared(shapes: Callable[..., Any], outputs: tuple[str, ...]) -> Callable[[F], F]:
    def register(function: F) -> F:
        # Devices have no symbolic sizes.
        schema = torch.library.infer_schema(function, mutates_args=()).replace("SymInt", "int")
        arguments, _, _ = schema[1:].partition(") -> ")
        places = [*inspect.signature(function).parameters]
        wanted = [places.index(name) for name in inspect.signature(shapes).parameters]

        def fake(*given: Any) -> Any:
            return shapes(*(given[place] for place in wanted))

        declare(function.__name__, arguments, outputs, function, fake)
        return function

    return register


def declare(
    name: str,
    arguments: str,
    outputs: Sequence[str],
    run: Callable[..., Any],
    shapes: Callable[..., Any],
) -> None:
    """Declare an operator with an explicit schema.

    Args:
        name, arguments: parts of the schema.
        outputs: names of the outputs of the ``out`` overload; empty if devices do not implement the operator.
        run: CPU implementation.
        shapes: returns empty results; takes the same arguments as ``run``.
    """
    plain = ", ".join(["Tensor"] * (len(outputs) or 1))
    result = f"({plain})" if len(outputs) > 1 else plain
    _LIBRARY.define(f"{name}({arguments}) -> {result}", tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shapes, lib=_LIBRARY)
    if not outputs:
        return
    DEVICE[name] = tuple(outputs)
    written = [f"Tensor({chr(97 + place)}!)" for place in range(len(outputs))]
    named = ", ".join(map(" ".join, zip(written, outputs, strict=True)))
    marked = f"({', '.join(written)})" if len(outputs) > 1 else written[0]
    _LIBRARY.define(f"{name}.out({arguments}, *, {named}) -> {marked}")
    _LIBRARY.impl(f"{name}.out", _out_variant(run, outputs), "CPU")


def _out_variant(function: Callable[..., Any], outputs: Sequence[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **given: Any) -> Any:
        targets = [given.pop(name) for name in outputs]
        results = function(*arguments, **given)
        values = results if isinstance(results, tuple) else (results,)
        for target, value in zip(targets, values, strict=True):
            target.resize_(value.shape).copy_(value)
        return tuple(targets) if len(targets) > 1 else targets[0]

    return call


def differentiable(name: str, save: Callable[..., None]) -> Callable[[F], F]:
    """Register the backward function of an operator; ``save(ctx, inputs, output)`` stores its inputs in ``ctx``."""

    def register(function: F) -> F:
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", function, setup_context=save, lib=_LIBRARY
        )
        return function

    return register


def like(x: torch.Tensor) -> torch.Tensor:
    """Return an empty tensor with the shape of ``x``."""
    return x.new_empty(x.shape)
