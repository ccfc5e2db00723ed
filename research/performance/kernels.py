"""Programs of split bundles that ``zoexport bench`` measured, and their products timed alone.

``python -m research.performance.kernels PAGE FOLDER`` reads what ``zoexport bench -o FOLDER`` measured here, and
times every product of int4 weights in its programs. It puts three tables between the page's lines
``<!-- bench-kernels -->``: what each program costs in a step, the share of unpacking weights, and the products beside
PyTorch's and XNNPACK's.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from research.performance import kernel_times
from research.performance.kernel_times import OURS, PLAIN, TORCH, XNNPACK, Round
from research.performance.page import measured
from research.support.command import Clock, exit_status
from research.support.page import marked, publish
from research.support.products import Content, Product, contents
from zoexport.session import Bundle
from zoexport.tools.bench import bundles
from zoexport.tools.bench.output import markdown_table

MARK = "bench-kernels"
OTHERS = (TORCH, XNNPACK, PLAIN)
METHOD = (
    "each product alone in one process, implementations taking turns in rounds, the median of calls over 0.1 s; "
    "weights in the caches as far as they fit. quantized: this project's operator; fp32: its matmul with the "
    "dequantized weight; torch: torch.nn.functional.linear, or torch.mm of the gradient; xnnpack: a linear layer of "
    "ExecuTorch's XNNPACK delegate. Inputs by pointer, results into the same memory, but torch allocates its own. "
    "unpacking: quantized minus fp32, times the calls of a step"
)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program in the steps of one variant.

    Attributes:
        backward: whether stages go backward with it.
        calls: calls per step.
        seconds: seconds per step, without loading.
        content: what a call computes.
    """

    name: str
    backward: bool
    calls: float
    seconds: float
    content: Content

    @property
    def gflop(self) -> float:
        """The operations of a call's matrix products, in 1e9."""
        return self.content.flops / 1e9

    @property
    def gflop_s(self) -> float:
        """The rate of these operations."""
        return self.gflop * self.calls / self.seconds if self.seconds else 0.0


Step = tuple[Mapping[str, Any], Sequence[Program]]
"""An entry of a measurement's results, and its programs."""


def programs(entry: Mapping[str, Any], folder: Path) -> list[Program]:
    """Return the programs that a step called, in the manifest's order; none unless the bundle is split.

    Args:
        entry: an entry of a measurement's results.
        folder: the folder of its bundle.

    Raises:
        BundleError: the bundle is missing or damaged.
    """
    if entry["bundle"] is None:  # a baseline
        return []
    bundle = folder / entry["bundle"]
    manifest = Bundle.open(bundle).manifest
    if "stages" not in manifest:
        return []
    kinds = ("backward", "from_saved")
    backward = {stage[kind] for stage in manifest["stages"] for kind in kinds if stage.get(kind)}
    content, calls, seconds = contents(bundle), entry["calls_by_part"], entry["seconds_by_part"]
    return [
        Program(name, program.get("family") in backward, calls[name], seconds[name], content[name])
        for program in manifest["programs"]
        if calls.get(name := program["name"])
    ]


def programs_table(steps: Sequence[Step]) -> str:
    """Return a row for each program of each variant: its calls, time, planned memory and operations."""
    rows = [
        [
            entry["method"],
            entry["max_length"],
            program.name,
            program.calls,
            round(program.seconds / program.calls * 1e3, 3),
            f"{program.seconds / entry['step_seconds']:.1%}",
            round(program.content.planned_bytes / 1e6, 2),
            round(program.gflop, 4),
            round(program.gflop_s, 1),
        ]
        for entry, found in steps
        for program in found
    ]
    header = ("method", "seq", "program", "calls", "ms/call", "share", "planned MB", "GFLOP")
    return markdown_table((*header, "GFLOP/s"), rows)


def unpacking_table(steps: Sequence[Step], taken: Mapping[Product, Sequence[Round]]) -> str:
    """Return a row for each variant: how much longer its int4 products take than fp32 products by the same kernel."""
    extra = {
        product: _seconds(rounds, OURS) - _seconds(rounds, PLAIN)
        for product, rounds in taken.items()
    }
    rows: list[list[Any]] = []
    for entry, found in steps:
        spent, total = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
        for program in found:
            products = program.content.products.items()
            each_call = sum(extra.get(product, 0.0) * count for product, count in products)
            spent[program.backward] += each_call * program.calls
            total[program.backward] += program.seconds
        shares = [f"{spent[way] / total[way]:.1%}" if total[way] else None for way in spent]
        both = sum(spent.values())
        rows.append([entry["name"], *shares, f"{both / entry['step_seconds']:.1%}", round(both, 6)])
    return markdown_table(("of", "forward", "backward", "step", "s/step"), rows)


def products_table(taken: Mapping[Product, Sequence[Round]]) -> str:
    """Return a row for each product: milliseconds by implementation, and the ratios of ours to the others."""
    rows = []
    for product, rounds in taken.items():
        known = rounds[0]
        row: list[Any] = [str(product)]
        for name in (OURS, *OTHERS):
            row.append(round(_seconds(rounds, name) * 1e3, 3) if name in known else None)
        for name in OTHERS:
            row.append(_ratio(rounds, name) if name in known else None)
        rows.append(row)
    header = ("product", *(f"{name} ms" for name in (OURS, *OTHERS)))
    return markdown_table((*header, *(f"over {name}" for name in OTHERS)), rows)


def _seconds(rounds: Sequence[Round], name: str) -> float:
    return statistics.median(statistics.median(one[name]) for one in rounds)


def _ratio(rounds: Sequence[Round], name: str) -> str:
    values = [statistics.median(one[OURS]) / statistics.median(one[name]) for one in rounds]
    ours, theirs = (min(min(one[key]) for one in rounds) for key in (OURS, name))
    return f"{statistics.median(values):.3g} ({ours / theirs:.3g})"


def text(
    result: Mapping[str, Any], steps: Sequence[Step], taken: Mapping[Product, Sequence[Round]]
) -> str:
    """Return the page's part."""
    about = result["conditions"]
    parts = [
        "**Programs.** Time of a call, loading left out; share: of a step. planned MB: values between a program's "
        "operators, which is one reservation for all programs, as large as the largest needs. GFLOP: the matrix "
        "products of a call.",
        programs_table(steps),
        "**Unpacking weights.** What products with packed weights take longer than the same kernel's products of "
        "fp32 numbers, as a share of the forward programs, the backward programs and the step. Below zero: reading "
        "fp32 weights costs more.",
        unpacking_table(steps, taken),
        "**Products.** Milliseconds of a call; rows x depth x columns. over ...: the time of the quantized product "
        "over the other's, median of the rounds, and of the fastest calls in brackets; less is better.",
        products_table(taken),
        f"- {about['cpu']}, {about['threads']} threads; steps of {about['date'][:10]}\n- {METHOD}\n",
    ]
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path, help="the page with the marked part to renew")
    parser.add_argument("folder", type=Path, help="the folder that zoexport bench wrote")
    parser.add_argument("--work", type=Path, help="where bundles are kept")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(arguments)

    def renewed(clock: Clock) -> None:
        result = measured(chosen.folder)
        marked(chosen.page, MARK)
        clock("reading bundles", None)
        kept = bundles.kept_in(bundles.work_folder(chosen.work))
        found = [(entry, programs(entry, kept)) for entry in result["results"]]
        steps = [(entry, of) for entry, of in found if of]
        products = {
            one for _, of in steps for program in of for one in program.content.products if one.int4
        }
        taken = kernel_times.measure(
            sorted(products, key=lambda product: (product.flops, str(product))),
            threads=result["conditions"]["threads"],
            rounds=chosen.rounds,
            progress=clock,
        )
        publish(chosen.page, MARK, text(result, steps, taken))

    return exit_status(renewed)


if __name__ == "__main__":
    raise SystemExit(main())
