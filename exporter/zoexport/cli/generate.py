"""``zoexport generate``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.data.sources import DataSource


@click.command()
@options.bundle
@click.option("--prompt", help="The text that is to be continued.")
@options.data(
    required=False,
    text='Prompts: {"prompt"} or {"messages"} (docs/cli.md, "Data"); the results are one line of JSON for each.',
)
@click.option("--state", type=options.PATH, help="With what this state has trained.")
@click.option("--adapter", type=options.PATH, help="With what 'adapter export' wrote.")
@options.stop
@click.option(
    "--max-new-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="At most."
)
@options.sampling
@options.sliding
@options.last
@options.engine
@options.common
def generate(
    bundle: Bundle,
    prompt: str | None,
    data: DataSource | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Continue a text with BUNDLE, as it was compiled or with what was trained.

    \b
    zoexport generate model.bundle --state run --prompt "Once upon a time"
    zoexport generate model.bundle --adapter adapter --prompt "Once" --temperature 0.8 --top-p 0.9 --seed 1
    zoexport generate model.bundle --state run --prompt "Q: 2 + 2?\\nA:" --stop Q:
    zoexport generate model.bundle --state run --data prompts.jsonl
    zoexport generate model.bundle --state run --data questions.csv --columns prompt=question
    """
    from zoexport.core.errors import ConfigError
    from zoexport.data.sources import opened
    from zoexport.run.generate import Prompt, generate_each, read_prompts

    if (prompt is None) == (data is None):
        raise ConfigError(
            "--prompt and --data",
            found="both" if data is not None else "neither",
            expected="one of them",
            fix="Give a text, or a file of prompts.",
        )
    prompts = [Prompt(prompt or "")]
    if data is not None:
        with output_of_libraries(), opened(data) as file:
            prompts = read_prompts(file)
    shown = data is None and not as_json

    def say(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    with output_of_libraries():
        on_text = say if shown and sys.stderr.isatty() else None
        results = []
        for made in generate_each(bundle, prompts, on_text=on_text, **how):
            results.append(made.as_dict())
            if data is not None and sys.stderr.isatty():
                # Not print: standard output belongs to libraries meanwhile.
                say(f"{len(results)} of {len(prompts)}\r")
    if data is not None:
        for result in results:
            print(json.dumps(result, allow_nan=False))
        sys.stdout.flush()
        return
    (result,) = results
    rows = [
        ("stop", result["stop"]),
        (
            "prompt",
            f"{result['prompt_tokens']} tokens, {result['prefill_tokens_per_second']} a second",
        ),
        ("text", f"{len(result['tokens'])} tokens, {result['decode_tokens_per_second']} a second"),
        ("memory", f"at most {result['peak_anonymous_mb']} MB anonymous"),
    ]
    emit(result, [result["text"], "", *table(rows)], as_json=as_json)
