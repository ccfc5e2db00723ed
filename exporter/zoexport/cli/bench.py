"""``zoexport bench``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from zoexport.cli import completion, options
from zoexport.cli.console import emit, output_of_libraries
from zoexport.cli.keys import json_keys
from zoexport.core.errors import ConfigError
from zoexport.run.progress import Phases


def _values(kind: click.ParamType[Any] | type) -> Callable[..., tuple[Any, ...] | None]:
    """Return a callback that splits a value at commas and converts each part; None stays None."""
    converted = click.types.convert_type(kind)

    def values(
        context: click.Context, option: click.Parameter, value: str | None
    ) -> tuple[Any, ...] | None:
        if value is None:
            return None
        parts = [part.strip() for part in value.split(",")]
        return tuple(dict.fromkeys(converted.convert(part, option, context) for part in parts))

    return values


_SIZES = _values(click.IntRange(min=1))


@click.command()
@click.argument("subjects", metavar="[MODEL | BUNDLE...]", nargs=-1)
@click.option(
    "--shape",
    metavar="NAME",
    help="Published configuration with random weights, instead of MODEL (a wrong name lists all).",
    shell_complete=completion.named(completion.shapes),
)
@click.option(
    "--grid", default="quick", show_default=True, help="quick, queries, layers, full or mebp."
)
@click.option("--methods", callback=_values(str), metavar="M,...", help="prge, mezo, mebp.")
@click.option("--weights", callback=_values(str), metavar="W,...", help="int4, int8, fp32.")
@click.option("--max-length", callback=_SIZES, metavar="N,...", help="Tokens per sequence.")
@click.option("--batch-size", callback=_SIZES, metavar="N,...", help="Sequences per batch (B).")
@click.option(
    "--num-queries", callback=_SIZES, metavar="N,...", help="Random directions per step (q)."
)
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help="Product q * B; the batch size is then rows / queries.",
)
@click.option(
    "--layers",
    callback=_values(str),
    metavar="L,...",
    help="lora.layers_to_transform: all, last:K.",
)
@click.option(
    "--targets", callback=_values(str), metavar="T,...", help="lora.target_modules: attention, ..."
)
@click.option(
    "--keep-mb",
    "activation_cache_mb",
    callback=_values(click.IntRange(min=0)),
    metavar="N,...",
    help="activation_cache_mb of mebp: disk budget in MB for saved activations.",
)
@click.option(
    "--labels",
    callback=_values(click.Choice(["all", "last"])),
    metavar="L,...",
    help="Tokens to predict: all, or last for the last one only.",
)
@click.option(
    "--eager/--no-eager",
    default=None,
    help="Also measure PyTorch. Default: in quick, full and mebp.",
)
@click.option("--target", default="host", show_default=True, help="Target to compile for.")
@options.settings
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Number of compute threads. Default: number of cores.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Steps per round; fewer (at least 3) if they would take more than 5 s.",
)
@click.option(
    "--warmup",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Steps at the start of a round that are not measured.",
)
@click.option(
    "--work", type=options.PATH, help="Folder for compiled bundles. Default: in the cache."
)
@click.option(
    "-o", "--output", type=options.PATH, help="Folder for bench.json, bench.md and bench.png."
)
@options.force
@options.common
@json_keys("""
    results: list with an entry for each variant; seconds_by_part and calls_by_part are the seconds
        and the calls per step of each program; compiling has the seconds, processor_seconds and
        peak_anonymous_mb of compiling its bundle, or is null
    ratios: list of kind, of, to, ratio, ratio_least, ratio_most and ratio_of_fastest
    conditions: machine, versions and settings; random_weights is the shape with random weights, or
        null
""")
def bench(
    subjects: tuple[str, ...],
    shape: str | None,
    grid: str,
    target: str,
    assignments: tuple[str, ...],
    threads: int | None,
    rounds: int,
    steps: int,
    warmup: int,
    work: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    **axes: Any,
) -> None:
    """Time training steps of MODEL, or of BUNDLEs, against the sequential baseline and PyTorch.

    One run measures P-RGE (prge), its sequential baseline (mezo), MeBP (mebp), and the Hugging Face
    model in PyTorch, fp32, with the same number of threads. Variants take turns; results are
    medians over the rounds. Steps run in a separate process, whose memory is reported.

    \b
        Grids (options replace single axes):
          quick     seq 64, q=1, B=1: prge and mezo with int4 and fp32, and PyTorch
          queries   q = 1, 2, 4, 8, 16 at q*B = 16: the cost of a query
          layers    q=4, B=1, only the last token predicted: lora.layers_to_transform last:8 against all
          full      all of these
          mebp      seq 128 to 2048, B=1, LoRA on all linear layers: mebp with activation_cache_mb=0 and
                    with room for all layers, mezo over the same layer-wise programs, and PyTorch with
                    autograd

    Bundles are compiled once (minutes each) and kept in --work. The same command resumes a run that
    was stopped. --shape NAME measures a published configuration with random weights; it is short
    for the MODEL shape:NAME. The random weights are written into the cache once, two bytes each.

    \b
        zoexport bench smollm2-135m
        zoexport bench smollm2-135m --grid mebp --max-length 256
        zoexport bench smollm2-135m --grid queries --weights int4,fp32 -o bench
        zoexport bench --shape qwen2.5-0.5b --grid mebp --max-length 256
        zoexport bench ./Qwen2-0.5B --methods prge --num-queries 1,4 --rows 4 --set lora.r=8 --no-eager
        zoexport bench model.bundle other.bundle --labels last
    """
    from zoexport.core.config import parse_assignments
    from zoexport.tools.bench.rounds import Plan
    from zoexport.tools.bench.run import bench as run_bench

    if (shape is None) == (not subjects):
        raise ConfigError(
            "argument MODEL and option --shape",
            found="both" if subjects else "neither",
            expected="one: what is measured",
            fix="Give a MODEL, BUNDLEs, or --shape NAME.",
        )
    if shape is not None:
        subjects = (f"shape:{shape}",)
    if len(subjects) > 1 and not all(Path(subject).is_dir() for subject in subjects):
        missing = next(subject for subject in subjects if not Path(subject).is_dir())
        raise ConfigError(
            f"argument {missing}",
            found="no such folder",
            expected="one MODEL, or folders of bundles",
            fix="Give one model a run, or check the paths.",
        )
    with output_of_libraries(), Phases("bench", as_json=as_json) as phases:
        result = run_bench(
            subjects,
            name=grid,
            changes={key: value for key, value in axes.items() if value is not None},
            target=target,
            settings=parse_assignments(assignments),
            threads=threads,
            plan=Plan(rounds, steps, warmup),
            work=work,
            folder=output,
            force=force,
            progress=phases,
        )
    from zoexport.tools.bench.output import lines

    emit(result, lines(result), as_json=as_json)
