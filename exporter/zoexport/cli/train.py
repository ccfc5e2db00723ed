"""``zoexport train`` and ``zoexport eval``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.core import keywords
from zoexport.run.progress import Phases, Steps
from zoexport.run.results import Evaluated, Trained

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.data.sources import DataSource


@click.command()
@options.bundle
@options.data("eval_data")
@click.option(
    "--state",
    type=options.PATH,
    default="run",
    show_default=True,
    help="Folder of the training state. The same command resumes from it.",
)
@click.option("--overwrite", is_flag=True, help="Start over if the folder has a state.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="Total number of steps; a state that has 30 of 100 is trained for 70 more.",
)
@click.option(
    "--epochs",
    type=click.FloatRange(min=0, min_open=True),
    help="Passes over the examples, instead of --steps.",
)
@options.typed(*keywords.TRAIN)
@options.validation
@click.option(
    "--report-to",
    multiple=True,
    metavar="KIND[:PLACE]",
    help="Logger for steps and evaluations: tensorboard, trackio or jsonl (docs/choose.md); may "
    "be repeated.",
)
@options.settings
@options.resume
@options.engine
@options.common
@json_keys(Trained)
def train(
    bundle: Bundle,
    data: DataSource,
    assignments: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Train BUNDLE on examples, in the session that a phone runs.

    --set takes runtime settings; 'zoexport methods NAME' marks them. Ctrl-C ends the run after the
    current step, and the same command resumes it. A resumed run keeps its settings and data; other
    ones are refused without --change-settings. One process at a time can train a state. With
    --eval-data, which a resumed run needs again, the state keeps the weights with the lowest
    validation loss, and export, eval and generate use them.

    The exit code is 3 if the loss diverges: it is not finite, or above ten times the median of the
    first five steps for five steps. The state then has its last good step.

    \b
        zoexport train model.bundle --data train.jsonl --state run --steps 150
        zoexport train model.bundle --data train.jsonl --state run --steps 300 \\
            --eval-data test.jsonl --patience 3
        zoexport train model.bundle --data train.csv --state run --steps 150 \\
            --columns prompt=question,completion=answer
        zoexport train model.bundle --state run --steps 150 \\
            --data hf:stanfordnlp/sst2:train --template sst2
        zoexport train model.bundle --data train.jsonl --state run --epochs 3 --learning-rate 5e-4
        zoexport train model.bundle --data train.jsonl --state run --steps 300 \\
            --learning-rate 2e-3 --change-settings
    """
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Steps("train", as_json=as_json) as shown:
        trained = bundle.train(
            data,
            settings=settings,
            progress=shown,
            phase=shown.phase,
            evaluated=shown.evaluated,
            **given,
        )
    result = trained.as_dict()
    losses = result["losses"]
    rows = [("loss", f"{losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last")]
    if result["best_step"] is not None:
        found = {one["step"]: one for one in result["evaluations"]}
        best, end = found[result["best_step"]], result["evaluations"][-1]
        rows.append(
            (
                "held out",
                f"{best['loss']:.4f} at step {best['step']}, the best; {end['loss']:.4f} at step {end['step']}",
            )
        )
    if result["steps"] < result["total_steps"]:
        early = result["total_steps"] - result["steps"]
        rows.append(("ended", f"{early} steps early: no lower loss since the best"))
    if result["step_seconds_median"] is None:
        rows.append(("time", "the state had them already"))
    else:
        anonymous, resident = result["peak_anonymous_mb"], result["peak_rss_mb"]
        rows += [
            ("time", f"{result['step_seconds_median']:.3f} s a step"),
            ("memory", f"at most {anonymous} MB anonymous, {resident} MB resident"),
        ]
    rows.append(("state", result["state"]))
    if result["shortened"]:
        rows.append(("shortened", f"{result['shortened']} of {result['examples']} examples"))
    emit(result, [f"Trained {result['steps']} steps.", *table(rows)], as_json=as_json)


@click.command("eval")
@options.bundle
@options.data()
@click.option(
    "--state",
    type=options.PATH,
    help="Training state to evaluate. Default: the bundle as compiled.",
)
@click.option(
    "--generate",
    is_flag=True,
    help="Also generate a response to each prompt and score it with SQuAD's metrics.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Maximum tokens of a response.",
)
@options.stop
@options.last
@options.settings
@options.engine
@options.common
@json_keys(Evaluated)
def evaluate(
    bundle: Bundle,
    data: DataSource,
    generate: bool,
    assignments: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Evaluate BUNDLE on examples: loss, accuracy over choices, accuracy over tokens.

    The loss is the mean over the label tokens of an example, then over the examples. --set takes
    loss (full, choices, dpo or orpo), choices, dpo.beta, orpo.beta, pack, append_eos and
    mask_history. --generate adds exact_match and f1 of greedy responses, which end at an end token,
    before --stop, or after --max-new-tokens. They ignore case, punctuation, articles and repeated
    spaces, and compare with the completion, the last turn, or the best of a list "answers".

    \b
        zoexport eval model.bundle --data test.jsonl
        zoexport eval model.bundle --data validation.parquet --template boolq --set loss=choices
        zoexport eval model.bundle --data test.jsonl --state run --generate --stop "\\n"
        zoexport eval model.bundle --data test.jsonl --state run --json
    """
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Phases("eval", as_json=as_json) as phases:
        found = bundle.evaluate(
            data, generate=generate, settings=settings, progress=phases, **given
        )
    result = found.as_dict()
    rows = [("loss", f"{result['loss']:.4f}")]
    if result["accuracy"] is not None:
        rows.append(("accuracy", f"{result['accuracy']:.1%}"))
    rows.append(("token accuracy", f"{result['token_accuracy']:.1%}"))
    if result["margin"] is not None:
        rows.append(("margin", f"{result['margin']:.4f}"))
    if generate:
        rows += [("exact match", f"{result['exact_match']:.1%}"), ("F1", f"{result['f1']:.1%}")]
    if result["shortened"]:
        rows.append(("shortened", f"{result['shortened']} examples"))
    emit(result, [f"Evaluated {result['examples']} examples.", *table(rows)], as_json=as_json)
