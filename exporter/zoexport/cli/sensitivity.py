"""``zoexport sensitivity``."""

from __future__ import annotations

from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.core.errors import ModelPhases
from zoexport.run.progress import Phases


@click.command()
@click.argument("model")
@click.option(
    "--data",
    type=options.PATH,
    help="Text for the gradients: JSON Lines, or plain text (.txt). Default: the Brown corpus.",
)
@click.option("-o", "--output", type=options.PATH, required=True, help="Mask file to write.")
@options.settings
@click.option(
    "--device-map",
    type=click.Choice(["auto", "cpu", "disk"]),
    help="Device on which accelerate keeps the weights, for models larger than memory.",
)
@options.force
@options.common
@json_keys("""
    mask: file that was written
    model, kind, density: model, and settings of the selection
    corpus: text that was used, or null
    sequences: number of sequences of the text
    chosen, weights: numbers of selected weights and of all linear weights
    coverage: share of the squared gradient norm; null unless kind=sensitive
    seconds: duration
    peak_rss_mb: memory; null if the system does not report it
""")
def sensitivity(
    model: str,
    data: Path | None,
    output: Path,
    assignments: tuple[str, ...],
    device_map: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Select the weights of MODEL that a sparse method trains and write their mask.

    Averages the squared gradients of the loss over the sequences of a text and selects the weights
    with the largest averages (SensZOQ). MODEL is as for compile.

    \b
        Settings:
          density=0.001     selected share of the linear weights
          scope=model       select among all weights together; layer: that share of each
          kind=sensitive    or random, largest, smallest (magnitude), grasp
          sequences=64      sequences of the text, drawn with the seed
          max_length=256    tokens per sequence
          seed=0

    \b
        zoexport sensitivity smollm2-135m -o smollm2.mask
        zoexport sensitivity ./Qwen2-0.5B --data task.jsonl --set density=0.01 -o task.mask
    """
    from zoexport.core.config import parse_assignments
    from zoexport.tools.sensitivity import make_mask

    settings = parse_assignments(assignments)
    with (
        output_of_libraries(),
        Phases("sensitivity", as_json=as_json) as shown,
        ModelPhases(model, "reading the model", shown).explained() as phases,
    ):
        result = make_mask(
            model,
            data=data,
            output=output,
            settings=settings,
            device_map=device_map,
            force=force,
            progress=phases,
        )
    rows: list[tuple[str, object]] = [
        ("mask", result["mask"]),
        ("chosen", f"{result['chosen']:,} of {result['weights']:,} weights"),
    ]
    if result["corpus"]:
        rows.append(("text", f"{result['sequences']} sequences of {result['corpus']}"))
    if result["coverage"] is not None:
        rows.append(("covers", f"{result['coverage']:.1%} of the squared gradient norm"))
    rows.append(("time", f"{result['seconds']:.1f} s"))
    lines = [f"Chose weights of {result['model']}, kind {result['kind']}.", *table(rows)]
    emit(result, lines, as_json=as_json)
