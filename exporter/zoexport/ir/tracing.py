"""Tracing without what nobody reads: Python code of graphs that do not run.

torch.fx writes and compiles Python code for a graph whenever a pass has changed it, and most graphs are only read.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from torch._decomp import core_aten_decompositions
from torch.fx import GraphModule, config
from torch.fx.graph import _PyTreeCodeGen

from zoexport.core.replaced import replaced


@functools.cache
def core_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions to core operators; it goes through all operators that there are, each time it is asked."""
    return MappingProxyType({**core_aten_decompositions()})


_WRITTEN = ("forward", "_code", "_lineno_map", "_prologue_start")
"""What :meth:`GraphModule.recompile` sets."""


@contextlib.contextmanager
def lean_tracing() -> Iterator[None]:
    """While this is open, a graph's code is written when it is first called or read, and nodes note no stack of calls.

    A module whose code was not needed meanwhile writes it later, by the graph that it then has.
    """
    recompile = GraphModule.recompile

    def later(module: GraphModule) -> Any:
        _write_later(module, recompile)

    with replaced((GraphModule, "recompile", later), (config, "do_not_emit_stack_traces", True)):
        yield


def _write_later(module: GraphModule, recompile: Any) -> None:
    codegen = module._graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec = codegen.pytree_info.in_spec
        module._out_spec = codegen.pytree_info.out_spec
    for name in _WRITTEN:
        vars(module).pop(name, None)
        # Every graph module has a class of its own.
        setattr(type(module), name, _Later(module, name, recompile))
    for child in module.children():
        if isinstance(child, GraphModule):
            _write_later(child, recompile)


class _Later:
    """An attribute of a graph module's class: whoever asks for it has the code written first."""

    def __init__(self, module: GraphModule, name: str, recompile: Any) -> None:
        self._module = weakref.ref(module)
        self._name = name
        self._recompile = recompile

    def __get__(self, module: GraphModule | None, owner: type) -> Any:
        written = module or self._module()
        for name in _WRITTEN:
            delattr(owner, name)
        self._recompile(written)
        return getattr(owner if module is None else module, self._name)
