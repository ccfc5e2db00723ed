"""How an operator of namespace ``zoexport`` is declared: one function, which says its name, its schema and its results.

``ops`` and the modules that it imports declare them. ``runtime_ops/bindings`` implements each one that has outputs of
its own (``.out``) on devices, under the same name and schema.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

NAMESPACE = "zoexport"
DEVICE: dict[str, tuple[str, ...]] = {}
"""The operators that devices implement, with the names of their outputs."""
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def operator(shapes: Callable[..., Any], *outputs: str) -> Callable[[F], F]:
    """Declare the operator that the function computes on a computer's CPU; its annotations are the schema.

    Args:
        shapes: makes empty results of those arguments that it names.
        outputs: names of the results, which devices write into; ``out`` where none is given.
    """
    return _declared(shapes, outputs or ("out",))


def semantic(shapes: Callable[..., Any]) -> Callable[[F], F]:
    """As :func:`operator`, for one that says what a graph means: a target replaces it, and no device has it."""
    return _declared(shapes, ())


def _declared(shapes: Callable[..., Any], outputs: tuple[str, ...]) -> Callable[[F], F]:
    def register(function: F) -> F:
        # A size is a number when programs run: devices know no symbols.
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
    """Declare an operator whose arguments no annotations of a function say.

    Args:
        name, arguments: of the schema. outputs: names of the results that devices write into; none: devices lack it.
        run: computes the results. shapes: makes empty ones, of all arguments.
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
    """Register an operator's backward function; ``save(ctx, inputs, output)`` keeps what it needs."""

    def register(function: F) -> F:
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", function, setup_context=save, lib=_LIBRARY
        )
        return function

    return register


def like(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor of the shape of x."""
    return x.new_empty(x.shape)
