"""``zoexport sensitivity``."""

from __future__ import annotations

from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.progress import Phases
from zoexport.core.errors import ModelPhases


@click.command()
@click.argument("model")
@click.option(
    "--data",
    type=options.PATH,
    help="Whose gradients choose: JSON Lines, or plain text (.txt). Default: the Brown corpus.",
)
@click.option("-o", "--output", type=options.PATH, required=True, help="The mask file.")
@options.settings
@click.option(
    "--device-map",
    type=click.Choice(["auto", "cpu", "disk"]),
    help="For models larger than memory: where accelerate keeps the weights.",
)
@options.force
@options.common
def sensitivity(
    model: str,
    data: Path | None,
    output: Path,
    assignments: tuple[str, ...],
    device_map: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Choose the weights of MODEL that a sparse method trains, and write them as a mask.

    The squared gradients of a text's loss are averaged over its sequences, and the weights with the largest are chosen
    (SensZOQ). MODEL is as for compile.

    \b
    Settings:
      density=0.001     chosen share of the linear weights
      scope=model       the best of all weights together; layer: that share of each
      kind=sensitive    or random, largest, smallest (magnitude), grasp
      sequences=64      of the text, drawn with the seed
      max_length=256       tokens of the longest
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
