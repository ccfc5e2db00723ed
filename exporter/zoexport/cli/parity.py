"""``zoexport parity``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.core.errors import ModelPhases
from zoexport.run.progress import Phases
from zoexport.run.results import Parity

if TYPE_CHECKING:
    from zoexport.api import Bundle

_SHOWN = 8
"""Maximum number of errors shown per inner value; there may be hundreds."""


@click.command()
@options.bundle
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--dump",
    type=options.PATH,
    help="Folder for each step's noise, inputs, losses and state from both sides, as safetensors.",
)
@click.option(
    "--signs",
    type=click.IntRange(min=1),
    metavar="QUERIES",
    help="Number of queries; compares the signs of their projected gradients instead of steps.",
)
@click.option(
    "--eps",
    type=click.FloatRange(min=0, min_open=True),
    help="Perturbation scale for --signs. Default: the bundle's.",
)
@click.option(
    "--inner",
    metavar="PROGRAM",
    help="NPU program; compares each of its inner results with PyTorch's, in order, instead of "
    "steps.",
)
@click.option("--model", help="Original model, if it has moved since compilation.")
@options.common
@json_keys(
    Parity,
    others={
        "with --signs": """
            passed: whether agreement is at least 0.95
            num_queries, eps: number of queries and perturbation scale
            max_loss_error: largest error of a loss at identical inputs
            counted, share: number and share of queries whose losses differ by more than that
            agreement: share of counted queries with equal signs; null if there are none
            agreement_of_all: the same for all queries
            mean_loss_difference, mean_difference_error: mean of the differences and of their errors
            runner: program that ran the side of the session
            """,
        "with --inner": """
            program: name of the program
            values: list of name, operator, shape, largest (magnitude) and error (of each entry of
                the first dimension, relative to it)
            """,
    },
)
def parity(
    bundle: Bundle,
    steps: int,
    dump: Path | None,
    signs: int | None,
    eps: float | None,
    inner: str | None,
    model: str | None,
    as_json: bool,
) -> int:
    """Compare BUNDLE in the session with the method's reference in PyTorch.

    Both sides run the same steps with the same noise. Errors are relative: of losses, |session -
    reference| / |reference|; of values and gradients, the norm of the difference over the norm of
    the reference, largest over the tensors. The exit code is 1 if a bound is exceeded, with --signs
    if fewer than 95 % of the counted signs agree.

    \b
        zoexport parity model.bundle
        zoexport parity model.bundle --steps 5 --dump parity-dump
        zoexport parity model.bundle --signs 200 --eps 3e-2
        zoexport parity npu.bundle --inner train --dump inner-values
    """
    from zoexport.compiler.parity_signs import compare_signs

    if inner is not None and signs is not None:
        raise click.UsageError("--inner and --signs are comparisons of their own; choose one.")
    if inner is not None:
        from zoexport.compiler.parity_inner import compare_inner

        with output_of_libraries(), Phases("parity", as_json=as_json) as phases:
            result = compare_inner(bundle, inner, model=model, dump=dump, progress=phases)
        emit(result, _inner(result), as_json=as_json)
        return 0
    if signs is None and eps is not None:
        raise click.UsageError("--eps goes with --signs.")
    if signs is not None:
        with output_of_libraries(), Phases("parity", as_json=as_json) as phases:
            result = compare_signs(bundle, queries=signs, eps=eps, model=model, progress=phases)
        emit(result, _signs(result), as_json=as_json)
        return 0 if result["passed"] else 1
    with (
        output_of_libraries(),
        Phases("parity", as_json=as_json) as shown,
        ModelPhases(model or str(bundle.path), "comparing", shown).explained() as phases,
    ):
        found = bundle.parity(steps=steps, dump=dump, model=model, progress=phases)
    result = found.as_dict()
    rows = [
        (name.removeprefix("max_relative_").replace("_", " "), f"{value:.2e}")
        for name, value in result.items()
        if name.startswith("max_relative_") and value is not None
    ]
    rows += [("bounds", ", ".join(f"{name} {bound:g}" for name, bound in result["bounds"].items()))]
    verdict = "agree" if result["passed"] else "DISAGREE"
    title = f"Session and reference {verdict} over {result['steps']} steps ({result['runner']})."
    emit(result, [title, *table(rows)], as_json=as_json)
    return 0 if result["passed"] else 1


def _inner(result: dict[str, Any]) -> list[str]:
    rows = [
        (
            f"{value['name']} {tuple(value['shape'])}",
            " ".join(f"{error:.1e}" for error in value["error"][:_SHOWN]),
        )
        for value in result["values"]
    ]
    title = f"Errors of {result['program']}, by first dimension, over the largest magnitude:"
    return [title, *table(rows)]


def _signs(result: dict[str, Any]) -> list[str]:
    counted, share = result["counted"], result["share"]
    agreement = "none counts" if not counted else f"{result['agreement']:.1%} of signs agree"
    return [
        f"Of {result['num_queries']} queries at eps {result['eps']:g}, {counted} ({share:.0%}) count: {agreement}.",
        *table(
            [
                ("largest loss error", f"{result['max_loss_error']:.2e}"),
                ("mean loss difference", f"{result['mean_loss_difference']:.2e}"),
                ("its mean error", f"{result['mean_difference_error']:.2e}"),
                ("signs of all queries", f"{result['agreement_of_all']:.1%} agree"),
            ]
        ),
    ]
