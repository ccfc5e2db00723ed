"""Products of the programs timed alone: our kernels, PyTorch's and XNNPACK's, with as many threads as the steps."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zoexport.bench.kernel_process import OURS, PLAIN, TORCH, XNNPACK
from zoexport.bench.products import Product
from zoexport.core.children import child, last_line, python
from zoexport.core.errors import ZoExportError
from zoexport.core.types import Progress

METHOD = (
    "each product alone in one process, implementations taking turns in rounds, the median of calls over 0.1 s; "
    "weights in the caches as far as they fit. quantized: this project's operator; fp32: its matmul with the "
    "dequantized weight; torch: torch.nn.functional.linear, or torch.mm of the gradient; xnnpack: a linear layer of "
    "ExecuTorch's XNNPACK delegate. Inputs by pointer, results into the same memory, but torch allocates its own. "
    "unpacking: quantized minus fp32, times the calls of a step"
)
_SECONDS = 0.1
OTHERS = (TORCH, XNNPACK, PLAIN)

Round = Sequence[Mapping[str, Mapping[str, float]]]
"""For each product the ``median`` and ``fastest`` seconds of a call by implementation."""


def measure(
    products: Sequence[Product], *, threads: int, rounds: int, progress: Progress
) -> list[dict[str, Any]]:
    """Time every product in every round.

    Returns:
        An entry a product, see :func:`summarize`.

    Raises:
        ZoExportError: the process ended.
    """
    if not products:
        return []
    with _process(threads) as ask:
        progress("preparing products", None)
        ask({"products": [dataclasses.asdict(product) for product in products]})
        taken: list[Round] = []
        for number in range(rounds):
            progress(f"products, round {number + 1} of {rounds}", number / rounds)
            taken.append(ask({"round": number, "seconds": _SECONDS})["times"])
    return [
        summarize(product, [times[place] for times in taken])
        for place, product in enumerate(products)
    ]


def summarize(
    product: Product, taken: Sequence[Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    """The figures of a product.

    ``seconds`` of an implementation is the median over the rounds of a round's median, with the extremes and the
    ``fastest`` call; a ratio is that of our kernel's time to another's, the median of the rounds' own, less being
    better.

    Args:
        taken: of each round.
    """
    implementations = {}
    for name in taken[0]:
        medians = [times[name]["median"] for times in taken]
        implementations[name] = {
            "seconds": round(statistics.median(medians), 7),
            "least": round(min(medians), 7),
            "most": round(max(medians), 7),
            "fastest": round(min(times[name]["fastest"] for times in taken), 7),
            "gflops": round(product.flops / statistics.median(medians) / 1e9, 1),
        }
    ratios = {}
    for name in OTHERS:
        if name in implementations:
            values = [times[OURS]["median"] / times[name]["median"] for times in taken]
            fastest = implementations[OURS]["fastest"] / implementations[name]["fastest"]
            ratios[name] = {
                "ratio": round(statistics.median(values), 4),
                "ratio_least": round(min(values), 4),
                "ratio_most": round(max(values), 4),
                "ratio_of_fastest": round(fastest, 4),
            }
    return {
        "name": str(product),
        **dataclasses.asdict(product),
        "implementations": implementations,
        "ratios": ratios,
    }


def extra_seconds(entries: Sequence[Mapping[str, Any]]) -> dict[Product, float]:
    """What a product with packed weights takes longer than the same kernel's product of fp32 numbers."""
    fields = [field.name for field in dataclasses.fields(Product)]
    return {
        Product(**{field: entry[field] for field in fields}): entry["implementations"][OURS][
            "seconds"
        ]
        - entry["implementations"][PLAIN]["seconds"]
        for entry in entries
    }


@contextlib.contextmanager
def _process(threads: int) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    command, environment = python("zoexport.bench.kernel_process", threads)
    with (
        tempfile.TemporaryFile() as log,
        child(command, stdin=subprocess.PIPE, errors=log, environment=environment) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def ask(request: dict[str, Any]) -> dict[str, Any]:
            with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended; said below
                print(json.dumps(request), file=requests, flush=True)
                answer: dict[str, Any] = json.loads(answers.readline())
                return answer
            raise ZoExportError(
                "products",
                found=f"a process that ended with status {process.wait()} ({last_line(log)})",
                expected="times of products",
                fix="Pass --no-kernels to measure without them; where memory was short, close other programs.",
            )

        yield ask
