"""``zoexport generate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table


@click.command()
@options.bundle
@click.option("--prompt", help="The text that is to be continued.")
@click.option(
    "--data",
    type=options.PATH,
    help='JSON Lines of {"prompt"}; the results are one line of JSON for each.',
)
@click.option("--state", type=options.PATH, help="With what this state has trained.")
@click.option(
    "--adapter", type=options.PATH, help="With an adapter's folder, as 'adapter export' writes it."
)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="At most."
)
@click.option(
    "--temperature", type=float, default=0.0, show_default=True, help="0: the likeliest token."
)
@click.option("--top-p", type=float, default=1.0, show_default=True, help="See docs/generate.md.")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="0: all tokens.")
@click.option("--min-p", type=float, default=0.0, show_default=True, help="See docs/generate.md.")
@click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="1: none.")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True)
@options.common
def generate(
    bundle: Path,
    prompt: str | None,
    data: Path | None,
    state: Path | None,
    adapter: Path | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    as_json: bool,
) -> None:
    """Continue a text with BUNDLE, as it was compiled or with what was trained.

    \b
    zoexport generate model.bundle --state run --prompt "Once upon a time"
    zoexport generate model.bundle --adapter adapter --prompt "Once" --temperature 0.8 --top-p 0.9 --seed 1
    zoexport generate model.bundle --state run --data prompts.jsonl
    """
    from zoexport.core.errors import ConfigError
    from zoexport.generate import generate as run
    from zoexport.generate import read_prompts
    from zoexport.session import Sampling

    if (prompt is None) == (data is None):
        raise ConfigError(
            "--prompt and --data",
            found="both" if data is not None else "neither",
            expected="one of them",
            fix="Give a text, or a file of prompts.",
        )
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, seed)
    prompts = [prompt] if data is None and prompt is not None else read_prompts(data or Path())
    shown = data is None and not as_json

    def say(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    with output_of_libraries():
        made = run(
            bundle,
            prompts,
            state=state,
            adapter=adapter,
            max_tokens=max_tokens,
            sampling=sampling,
            on_text=say if shown and sys.stderr.isatty() else None,
        )
        results = []
        for result in made:
            results.append(result)
            if data is not None:
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
