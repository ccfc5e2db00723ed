"""``zoexport parity``."""

from __future__ import annotations

from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.progress import Phases


@click.command()
@options.bundle
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--dump",
    type=options.PATH,
    help="Write each step's noise, inputs, losses and state from both sides, as safetensors.",
)
@click.option("--model", help="Where the original model is, if it is no longer where it was.")
@options.common
def parity(bundle: Path, steps: int, dump: Path | None, model: str | None, as_json: bool) -> int:
    """Compare BUNDLE in the session with the method's reference in PyTorch.

    Both sides take the same steps with the same noise. The exit code is 1 when a bound is exceeded.

    \b
    zoexport parity model.bundle
    zoexport parity model.bundle --steps 5 --dump parity-dump
    """
    from zoexport.parity import parity as compare

    with output_of_libraries(), Phases("parity", as_json=as_json) as phases:
        result = compare(bundle, steps=steps, dump=dump, model=model, progress=phases)
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
