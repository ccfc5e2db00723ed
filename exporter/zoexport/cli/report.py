"""``zoexport report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, size, table
from zoexport.cli.keys import json_keys
from zoexport.run.progress import Phases

if TYPE_CHECKING:
    from zoexport.api import Bundle


@click.command()
@click.argument("states", metavar="STATE...", nargs=-1, required=True, type=options.PATH)
@click.option("-o", "--output", type=options.PATH, required=True, help="HTML file to write.")
@options.opening(
    click.option(
        "--bundle",
        type=options.PATH,
        help="Bundle of all the states; adds the planned costs and the responses to --prompt.",
    )
)
@click.option(
    "--prompt",
    **options.TEXT,
    multiple=True,
    help="Prompt whose responses before and after training are shown; may be repeated. \\n is a "
    "line break.",
)
@options.prompting
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Maximum tokens of a response.",
)
@options.force
@options.common
@json_keys("""
    report: file that was written
    bytes: size of the file
    runs: list of state, steps, best_step (null without evaluations), step_seconds_median and
        peak_anonymous_mb (null if not recorded)
""")
def report(
    states: tuple[Path, ...],
    output: Path,
    bundle: Bundle | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write an HTML report of one run, or a comparison of several.

    The page needs no network and has no scripts. It shows training and validation losses, settings
    side by side, and time and memory if 'train --report-to jsonl' recorded them. At most 24 runs
    are compared. A run may train meanwhile.

    \b
        zoexport report run -o report.html
        zoexport report run-1 run-2 -o report.html --bundle model.bundle --prompt "Once upon a time"
    """
    from zoexport.api.verbs import report as write_report

    with output_of_libraries(), Phases("report", as_json=as_json) as phases:
        result = write_report(
            states,
            output,
            bundle=bundle,
            progress=phases,
            **given,
        ).as_dict()
    rows = [("page", f"{result['report']}, {size(result['bytes'])}")]
    emit(result, [f"Wrote a page of {len(states)} runs.", *table(rows)], as_json=as_json)
