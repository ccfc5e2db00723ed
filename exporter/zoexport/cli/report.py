"""``zoexport report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, size, table
from zoexport.cli.progress import Phases

if TYPE_CHECKING:
    from zoexport.api import Bundle


@click.command()
@click.argument("states", metavar="STATE...", nargs=-1, required=True, type=options.PATH)
@click.option("-o", "--output", type=options.PATH, required=True, help="The page to write.")
@options.opening(
    click.option(
        "--bundle",
        type=options.PATH,
        help="Of all the states: adds what was planned, and what --prompt asks for.",
    )
)
@click.option(
    "--prompt",
    "prompts",
    **options.TEXT,
    multiple=True,
    help="Show the answer before and after training; again for several. \\n is a line's end.",
)
@options.prompting
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Of such a text, at most.",
)
@options.force
@options.common
def report(
    states: tuple[Path, ...],
    output: Path,
    bundle: Bundle | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write one HTML page of a run, or of several compared.

    The page needs no network and has no scripts: losses, held-out losses, settings side by side, time and memory where
    'train --report-to jsonl' recorded them.

    \b
    zoexport report run -o report.html
    zoexport report run-1 run-2 -o report.html --bundle model.bundle --prompt "Once upon a time"
    """
    from zoexport.tools.report import write_report

    with output_of_libraries(), Phases("report", as_json=as_json) as phases:
        result = write_report(
            states,
            output,
            bundle=bundle,
            progress=phases,
            **given,
        )
    rows = [("page", f"{result['report']}, {size(result['bytes'])}")]
    emit(result, [f"Wrote a page of {len(states)} runs.", *table(rows)], as_json=as_json)
