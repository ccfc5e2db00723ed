"""``zoexport data``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.groups import Verbs
from zoexport.cli.keys import json_keys

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.data.sources import DataSource


@click.group(cls=Verbs)
def data() -> None:
    """Check examples before training on them.

    \b
        zoexport data check train.jsonl --bundle model.bundle
    """


@data.command()
@options.source(click.argument("data", metavar="SOURCE"))
@options.opening(
    click.option(
        "--bundle", type=options.PATH, required=True, help="Bundle whose tokenizer is used."
    )
)
@click.option(
    "--loss",
    type=click.Choice(["full", "choices", "dpo", "orpo"]),
    default="full",
    show_default=True,
    help="Training loss to check for: choices needs candidates, dpo and orpo pairs of completions.",
)
@click.option("--pack", is_flag=True, help="Report how many rows pack=true makes of the examples.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of problems and shortened examples to list.",
)
@options.common
@json_keys("""
    examples: number of examples that can be used
    usable: whether SOURCE can be used as it is
    shapes: number of examples by text, completion, choices, preference and messages
    max_length: maximum number of tokens of the bundle
    tokens: least, median, p95 and longest number of tokens before shortening; null without examples
    labels: number of examples by completion; null if there are more than 20 completions
    choices: number of examples by number of choices
    right: number of examples by index of the right choice
    duplicates: number of examples that equal an earlier one
    empty: number of examples with an empty text, prompt or completion
    rows: number of rows with pack=true; null without --pack
    shortened: number of examples longer than max_length
    shortened_at: list of their places, at most --limit
    joined: number of examples without a space between prompt and completion
    merged: number of examples with a token that is part of both prompt and completion
    last_turn_only: number of conversations of which only the last turn is learned
    unused: list of keys that no example uses
    problem_count: number of rows that cannot be used
    problems: list of where, found, expected and fix
""")
def check(data: DataSource, bundle: Bundle, as_json: bool, **given: Any) -> int:
    """Check SOURCE as training data and list every problem in it.

    SOURCE is a value for --data of 'train'. The exit code is 1 if SOURCE cannot be used for
    training as it is.

    \b
        zoexport data check train.jsonl --bundle model.bundle
        zoexport data check train.csv --bundle model.bundle --columns prompt=question,completion=answer
        zoexport data check notes/ --bundle model.bundle --pack
        zoexport data check train.parquet --bundle model.bundle --template sst2 --loss choices --json
    """
    from zoexport.api.verbs import check as run

    with output_of_libraries():
        result = run(data, bundle, **given).as_dict()
    emit(result, _lines(data.name, result), as_json=as_json)
    return 0 if result["usable"] else 1


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} of {name!r}" for name, count in counts.items())


def _lines(name: str, result: dict[str, Any]) -> list[str]:
    rows = [(shape, str(count)) for shape, count in result["shapes"].items()]
    if tokens := result["tokens"]:
        rows.append(
            (
                "tokens",
                f"{tokens['least']} to {tokens['longest']}, median {tokens['median']}, "
                f"95 % have at most {tokens['p95']}; max_length {result['max_length']}",
            )
        )
    if result["labels"] and len(result["labels"]) < result["examples"]:
        rows.append(("labels", _counts(result["labels"])))
    if result["choices"]:
        counts = (f"{count} with {number}" for number, count in result["choices"].items())
        rows.append(("number of choices", ", ".join(counts)))
        places = (f"{count} at {place}" for place, count in result["right"].items())
        rows.append(("right choices", ", ".join(places)))
    if result["rows"] is not None:
        rows.append(("rows", f"{result['rows']} with pack=true, of {result['max_length']} tokens"))
    rows += [(key, str(result[key])) for key in ("duplicates", "empty", "shortened") if result[key]]
    rows += [("", where) for where in result["shortened_at"]]
    if result["joined"]:
        rows.append(("without a blank before the completion", str(result["joined"])))
    if result["merged"]:
        rows.append(("with a token across the border to it", str(result["merged"])))
    if result["last_turn_only"]:
        text = f"{result['last_turn_only']}, as the chat template writes earlier answers otherwise"
        rows.append(("conversations learned at the last answer alone", text))
    if result["unused"]:
        text = f"{', '.join(result['unused'])}; --label-column makes classes of a column"
        rows.append(("not used", text))
    rows.append(("problems", str(result["problem_count"])))
    lines = [f"{name}: {result['examples']} examples that can be used.", *table(rows)]
    for one in result["problems"]:
        lines.append(
            f"{one['where']}: found {one['found']}; expected {one['expected']}. {one['fix']}"
        )
    if (hidden := result["problem_count"] - len(result["problems"])) > 0:
        lines.append(f"and {hidden} more")
    return lines
