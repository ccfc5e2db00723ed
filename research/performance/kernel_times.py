"""Products of int4 weights, each timed alone: this project's kernels beside PyTorch's and XNNPACK's.

Every implementation is called as in training. A program of ExecuTorch gets its inputs by pointer and writes its result
into the same planned memory at each call. PyTorch's linear layer, and the product that autograd computes for its
gradient, allocate their results.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from research.support.products import Product
from zoexport.core import int4, native
from zoexport.core.progress import Progress

OURS, TORCH, XNNPACK, PLAIN = "quantized", "torch", "xnnpack", "fp32"
"""Implementations: our int4 operator; then fp32 products by PyTorch, by XNNPACK and by our matmul."""
_SECONDS = 0.1
"""Time that calls of an implementation take together in a round, of at least so many calls:"""
_LEAST_CALLS = 3
_XNNPACK_BYTES = 64 << 20
"""Larger weights are left out: XNNPACK would hold two more copies of each."""

Round = Mapping[str, Sequence[float]]
"""Seconds of each call, by implementation."""


class Call(NamedTuple):
    """A prepared product: how to compute it, its result, and objects that must live as long."""

    run: Callable[[], object]
    result: Callable[[], Any]
    kept: Any = None


def measure(
    products: Sequence[Product], *, threads: int, rounds: int, progress: Progress
) -> dict[Product, list[Round]]:
    """Time every product in every round; implementations take turns.

    Raises:
        RuntimeError: an implementation's result is wrong.
    """
    import torch
    from executorch.extension.pybindings import portable_lib

    torch.set_num_threads(threads)
    # The operators register themselves with the ExecuTorch that is loaded, whose threads they share with XNNPACK.
    ctypes.CDLL(str(native.library_path()), mode=ctypes.RTLD_GLOBAL)
    runtime: Any = portable_lib
    runtime._unsafe_reset_threadpool(threads)
    progress("preparing products", None)
    prepared = {product: _implementations(product) for product in products}
    taken: dict[Product, list[Round]] = {product: [] for product in products}
    for number in range(rounds):
        progress(f"products, round {number + 1} of {rounds}", number / rounds)
        for product, calls in prepared.items():
            names = list(calls)
            first = number % len(names)
            order = [*names[first:], *names[:first]]
            taken[product].append({name: _time(calls[name].run) for name in order})
    return taken


def _time(run: Callable[[], object]) -> list[float]:
    run()  # caches, and threads that slept
    taken: list[float] = []
    while len(taken) < _LEAST_CALLS or sum(taken) < _SECONDS:
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return taken


def _implementations(product: Product) -> dict[str, Call]:
    """Return every implementation of a product, whose results are compared here."""
    import torch

    from zoexport.ir.graphs import zo

    shape = (product.columns, product.depth)
    codes, scales, weight = _layer(
        product.group_size, *(shape[::-1] if product.gradient else shape)
    )
    x = torch.randn(product.rows, product.depth, generator=torch.Generator().manual_seed(0))
    operator = getattr(zo, product.operator)
    biases = () if product.gradient else (None,)
    right = weight if product.gradient else weight.T
    eager = torch.mm if product.gradient else torch.nn.functional.linear
    eager_call = functools.partial(eager, x, weight)
    made = {
        OURS: _program(
            lambda x, codes, scales: operator(x, codes, scales, *biases), x, codes, scales
        ),
        PLAIN: _program(lambda x, w: zo.matmul(x, w, False, not product.gradient), x, weight),
        TORCH: Call(eager_call, eager_call),
    }
    if weight.nbytes <= _XNNPACK_BYTES:
        made[XNNPACK] = _xnnpack(right, x)
    exact = x.double() @ right.double()
    rounded = operator(x, codes, scales, *biases).double()  # of what it rounds before
    for name, call in made.items():
        call.run()
        expected = rounded if name == OURS else exact
        error = float((call.result().double() - expected).norm() / expected.norm())
        if not error < 1e-4:
            raise RuntimeError(f"{product}: {name} is off by {error:.1e}")
    return made


@functools.cache
def _layer(group_size: int, outputs: int, inputs: int) -> tuple[Any, Any, Any]:
    """Return quantized values, scales and the dequantized weight of a linear layer, shape (outputs, inputs)."""
    import torch

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    codes, scales = int4.quantize_int4(weight, group_size)
    return codes, scales, int4.dequantize_int4(codes, scales)


def _xnnpack(right: Any, x: Any) -> Call:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    depth, columns = right.shape
    layer = torch.nn.Linear(depth, columns, bias=False).requires_grad_(False)
    layer.weight.copy_(right.T)
    return _program(layer, x, partitioners=[XnnpackPartitioner()])


def _program(function: Callable[..., Any], *inputs: Any, partitioners: Any = None) -> Call:
    """Return a program of one operator with its inputs set: the call runs it and nothing else."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.extension.pybindings import portable_lib

    class Program(torch.nn.Module):
        def forward(self, *arguments: Any) -> Any:
            return function(*arguments)

    module = function if isinstance(function, torch.nn.Module) else Program()
    exported = torch.export.export(module, inputs, strict=False)
    lowered = to_edge_transform_and_lower(exported, partitioner=partitioners)
    code = lowered.exported_program().graph_module.code
    if partitioners and "executorch_call_delegate" not in code:
        raise RuntimeError("XNNPACK did not take the product")
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    buffer = lowered.to_executorch(config).buffer
    runtime: Any = portable_lib
    program = runtime._load_program_from_buffer(buffer)
    method = program.load_method("forward")
    method.set_inputs(inputs)
    return Call(method.execute, lambda: method.get_outputs()[0], (buffer, program, inputs))
