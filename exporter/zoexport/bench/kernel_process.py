"""Products timed in a process of their own, ``python -m zoexport.bench.kernel_process THREADS``.

It reads requests, a JSON object a line. The first is ``{"products": [...]}``, fields of ``products.Product``; it is
answered by ``{"ready": NUMBER}`` when all is prepared. Each ``{"round": N, "seconds": S}`` after it is answered by
``{"times": [{implementation: {"median", "fastest"}}, ...]}``, in the products' order. It ends with its standard input.

Every implementation is called as in training. A program of ExecuTorch gets its inputs by pointer and has its output
planned, so it writes its result into the same memory at each call; PyTorch's linear layer, and the product that
autograd computes for its gradient, allocate theirs. Times are of one call, over calls that take S seconds together.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from zoexport.bench.products import Product

OURS, PLAIN, TORCH, XNNPACK = "quantized", "fp32", "torch", "xnnpack"
"""Implementations: our kernel of the operator, our kernel of an fp32 product, PyTorch's and XNNPACK's of the latter."""
_XNNPACK_BYTES = 64 << 20
"""Larger weights are left out: XNNPACK would hold two more copies of each."""
_LEAST_CALLS = 3


@dataclasses.dataclass(frozen=True)
class Call:
    """A product that is ready to be computed, again and again, and its result."""

    run: Callable[[], object]
    result: Callable[[], Any]


def main(arguments: list[str]) -> int:
    """The process's side."""
    threads = int(arguments[0])
    # Libraries that print must not break the protocol.
    output, sys.stdout = sys.stdout, sys.stderr
    prepared: list[dict[str, Call]] = []
    for line in sys.stdin:
        request = json.loads(line)
        if "products" in request:
            _start(threads)
            products = [Product(**fields) for fields in request["products"]]
            maker = _Maker()
            prepared = [maker.implementations(product) for product in products]
            answer: dict[str, Any] = {"ready": len(prepared)}
        else:
            answer = {
                "times": [
                    _take_turns(calls, request["round"], request["seconds"]) for calls in prepared
                ]
            }
        output.write(json.dumps(answer) + "\n")
        output.flush()
    return 0


def _start(threads: int) -> None:
    import torch
    from executorch.extension.pybindings import portable_lib

    from zoexport.core import native

    torch.set_num_threads(threads)
    # The operators register themselves with the ExecuTorch that is loaded, whose threads they share with XNNPACK.
    ctypes.CDLL(str(native.library_path()), mode=ctypes.RTLD_GLOBAL)
    runtime: Any = portable_lib
    runtime._unsafe_reset_threadpool(threads)


def _take_turns(calls: dict[str, Call], first: int, seconds: float) -> dict[str, dict[str, float]]:
    names = list(calls)
    first %= len(names)
    return {name: _time(calls[name].run, seconds) for name in [*names[first:], *names[:first]]}


def _time(run: Callable[[], object], seconds: float) -> dict[str, float]:
    run()  # caches, and threads that slept
    taken: list[float] = []
    while len(taken) < _LEAST_CALLS or sum(taken) < seconds:
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return {"median": statistics.median(taken), "fastest": min(taken)}


class _Maker:
    """Makes calls; products of one layer share their weights."""

    def __init__(self) -> None:
        self._weights: dict[tuple[Any, ...], Any] = {}
        self._kept: list[
            Any
        ] = []  # a method reads its program's buffer, and does not keep it alive

    def implementations(self, product: Product) -> dict[str, Call]:
        """Every implementation of a product.

        Raises:
            RuntimeError: two of them disagree.
        """
        import torch

        from zoexport.ir.graphs import zo

        codes, scales, weight = self._layer(product)
        x = torch.randn(product.rows, product.depth, generator=_generator())
        operator = getattr(zo, product.operator)
        biases = () if product.gradient else (None,)
        made = {
            OURS: self._program(
                lambda x, codes, scales: operator(x, codes, scales, *biases), x, codes, scales
            ),
            PLAIN: self._program(
                lambda x, w: zo.matmul(x, w, False, not product.gradient), x, weight
            ),
        }
        right = weight if product.gradient else weight.T
        eager = torch.mm if product.gradient else torch.nn.functional.linear
        eager_call = functools.partial(eager, x, weight)
        made[TORCH] = Call(eager_call, eager_call)
        if weight.nbytes <= _XNNPACK_BYTES:
            made[XNNPACK] = self._xnnpack(right, x)
        exact = x.double() @ right.double()
        rounded = operator(x, codes, scales, *biases).double()  # of what it rounds before
        for name, call in made.items():
            call.run()
            expected = rounded if name == OURS else exact
            error = float((call.result().double() - expected).norm() / expected.norm())
            if not error < 1e-4:
                raise RuntimeError(f"{product}: {name} is off by {error:.1e}")
        return made

    def _layer(self, product: Product) -> tuple[Any, Any, Any]:
        """Codes, scales and the dequantized weight (outputs, inputs) of the layer that a product is of."""
        import torch

        from zoexport.core import int4

        shape = (product.columns, product.depth)
        if product.gradient:
            shape = (product.depth, product.columns)
        key = (product.int4, product.group_size, *shape)
        if key not in self._weights:
            weight = torch.randn(*shape, generator=_generator()) / shape[1] ** 0.5
            if product.int4:
                codes, scales = int4.quantize_int4(weight, product.group_size)
                plain = int4.dequantize_int4(codes, scales)
            else:
                codes, scales = int4.quantize_int8(weight)
                plain = int4.dequantize_int8(codes, scales)
            self._weights[key] = codes, scales, plain
        return self._weights[key]

    def _xnnpack(self, right: Any, x: Any) -> Call:
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        depth, columns = right.shape
        layer = torch.nn.Linear(depth, columns, bias=False).requires_grad_(False)
        layer.weight.copy_(right.T)
        return self._program(layer, x, partitioners=[XnnpackPartitioner()])

    def _program(
        self, function: Callable[..., Any], *inputs: Any, partitioners: Any = None
    ) -> Call:
        """A program of one operator, with its inputs set: the call runs it and nothing else."""
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
        if (
            partitioners
            and "executorch_call_delegate" not in lowered.exported_program().graph_module.code
        ):
            raise RuntimeError("XNNPACK did not take the product")
        planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=True)
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        buffer = lowered.to_executorch(config).buffer
        runtime: Any = portable_lib
        program = runtime._load_program_from_buffer(buffer)
        method = program.load_method("forward")
        method.set_inputs(inputs)
        self._kept.append((buffer, program, inputs))
        return Call(method.execute, lambda: method.get_outputs()[0])


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
