"""``zoexport finetune``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import completion, options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.run.progress import Steps
from zoexport.run.results import Trained

if TYPE_CHECKING:
    from zoexport.api.finetuning import Run
    from zoexport.data.sources import DataSource

_WIDTH = 100
"""Number of characters of a completion that are printed."""


@click.command()
@click.argument("model")
@options.data("eval_data")
@click.option(
    "--eval-data",
    metavar="SOURCE",
    shell_complete=completion.files,
    help="Validation examples. Default: a tenth of --data.",
)
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="Folder for the bundle, the run and the adapter. Default: ./<model>-finetuned.",
)
@click.option("--overwrite", is_flag=True, help="Start over if the folder has a run.")
@click.option(
    "--target",
    default="android-cpu",
    show_default=True,
    help="Device type to train on; see 'zoexport targets'.",
    shell_complete=completion.named(completion.targets),
)
@click.option(
    "--method",
    help="Training method; see 'zoexport methods'. Default: by target.",
    shell_complete=completion.named(completion.methods),
)
@click.option("--steps", type=click.IntRange(min=1), help="Number of training steps.")
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Passes over the examples. Default: 3, with at least 60 and at most 1000 steps.",
)
@click.option("--learning-rate", type=float, help="Learning rate. Default: by method.")
@click.option(
    "--batch-size", type=click.IntRange(min=1), help="Examples per step. Default: by method."
)
@click.option("--lora-r", type=click.IntRange(min=1), help="Rank of the adapters. Default: 16.")
@click.option(
    "--max-length",
    type=click.IntRange(min=2),
    help="Tokens per example; longer examples are cut. Default: the longest example, up to 1024.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Maximum tokens of the compared completions.",
)
@options.settings
@options.common
@json_keys(
    """
    output, bundle, adapter: folders that were written
    resumed: whether the folder already had a run
    comparisons: list of prompt, expected, before and after
    """,
    Trained,
)
def finetune(
    model: str, data: DataSource, assignments: tuple[str, ...], as_json: bool, **given: Any
) -> None:
    """Fine-tune MODEL on your examples, in the session that a phone runs.

    Compiles MODEL (or takes the bundle from the cache), holds out a tenth of the examples, trains,
    compares completions before and after, and exports the adapter. The same command resumes a run
    that was stopped.

    \b
        zoexport finetune smollm2-135m --data mails.jsonl
        zoexport finetune smollm2-135m --data mails.jsonl --epochs 5 --learning-rate 5e-4 -o mails
        zoexport finetune ./Qwen2-0.5B --data reviews.csv --columns prompt=question,completion=answer
        zoexport finetune smollm2-135m --data train.jsonl --target android-npu --steps 100
    """
    from zoexport.api.finetuning import finetune as run
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Steps("finetune", as_json=as_json) as shown:
        done = run(
            model,
            data,
            settings=settings,
            phase=shown.phase,
            progress=shown,
            evaluated=shown.evaluated,
            **given,
        )
    emit(done.as_dict(), _lines(done), as_json=as_json)


def _lines(run: Run) -> list[str]:
    trained = run.trained
    rows = []
    if trained.evaluations:
        first, best = trained.evaluations[0], min(trained.evaluations, key=lambda one: one["loss"])
        rows.append(
            (
                "validation loss",
                f"{first['loss']:.4f} before, {best['loss']:.4f} after {best['step']} steps (kept)",
            )
        )
    if trained.step_seconds_median is not None:
        rows.append(
            (
                "training",
                f"{trained.step_seconds_median:.2f} s/step, {trained.peak_anonymous_mb} MB of memory",
            )
        )
    if trained.shortened:
        rows.append(("cut", f"{trained.shortened} examples were longer than max_length"))
    lines = [f"Fine-tuned on {trained.examples} examples in {trained.steps} steps.", *table(rows)]
    for one in run.comparisons:
        texts = (("prompt", one.prompt), ("before", one.before), ("after", one.after))
        lines += ["", *table([(name, _in_line(text)) for name, text in texts])]
    bundle, state = _shown(run.bundle.path), _shown(run.state)
    commands = [
        f"zoexport chat {bundle} --state {state}",
        f"zoexport adapter export {bundle} --state {state} --format gguf -o adapter.gguf",
        f"zoexport adapter export {bundle} --state {state} --format mlx -o adapter-mlx",
        f"zoexport device push {bundle} --app",
    ]
    return [
        *lines,
        "",
        f"The adapter is in {_shown(run.adapter)}. Next:",
        *(f"  {one}" for one in commands),
    ]


def _in_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."


def _shown(path: Path) -> Path:
    """Return a path as the user would type it in the working directory."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
