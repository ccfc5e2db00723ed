"""``zoexport generate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table

if TYPE_CHECKING:
    from zoexport.data.sources import DataSource
    from zoexport.session import Sampling


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
    bundle: Path,
    prompt: str | None,
    data: DataSource | None,
    state: Path | None,
    adapter: Path | None,
    stop: tuple[str, ...],
    max_new_tokens: int,
    sampling: Sampling,
    sliding: bool,
    last: bool,
    engine: str | None,
    as_json: bool,
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
    from zoexport.run.generate import Prompt, read_prompts
    from zoexport.run.generate import generate as run

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
        made = run(
            bundle,
            prompts,
            state=state,
            adapter=adapter,
            max_new_tokens=max_new_tokens,
            stop=stop,
            sampling=sampling,
            sliding=sliding,
            last=last,
            engine=engine,
            on_text=say if shown and sys.stderr.isatty() else None,
        )
        results = []
        for result in made:
            results.append(result)
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
