"""``zoexport generate``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.run.results import Generated

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.data.sources import DataSource


@click.command()
@options.bundle
@click.option(
    "--prompt",
    "prompts",
    **options.TEXT,
    multiple=True,
    help="Prompt to answer or continue; may be repeated. \\n is a line break; - reads standard "
    "input.",
)
@options.prompting
@options.data(
    required=False,
    text='Prompts as they are: {"prompt"} or {"messages"} (docs/formats.md).',
)
@click.option("--state", type=options.PATH, help="Training state whose weights are used.")
@click.option("--adapter", type=options.PATH, help="Exported adapter to use.")
@options.stop
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Maximum tokens of a response.",
)
@options.sampling
@options.sliding
@options.last
@options.engine
@options.common
@json_keys(Generated)
def generate(
    bundle: Bundle,
    prompts: tuple[str, ...],
    system: str | None,
    chat_template: bool | None,
    data: DataSource | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Generate from BUNDLE, with the compiled weights or those of a state or adapter.

    If the model has a chat template, a prompt is a user message, unless the state was trained only
    on plain texts; other models continue the text. Each line of --data is {"prompt": TEXT}, a text
    to continue as it is, or {"messages": [...]}, a conversation to answer. Decoding is greedy
    without --temperature. The state does not change. --json prints one object per prompt.

    \b
        zoexport generate model.bundle --state run --prompt "Once upon a time"
        zoexport generate model.bundle --adapter adapter --prompt "Once" \\
            --temperature 0.8 --top-p 0.9 --seed 1
        zoexport generate model.bundle --state run --no-chat-template \\
            --prompt "Q: 2 + 2?\\nA:" --stop Q:
        zoexport generate model.bundle --state run --prompt - < letter.txt
        zoexport generate model.bundle --state run --data prompts.jsonl
        zoexport generate model.bundle --state run --data questions.csv --columns prompt=question
    """
    from zoexport.core.errors import ConfigError
    from zoexport.data.sources import opened
    from zoexport.run.generate import asked, generate_each, read_prompts

    if bool(prompts) == (data is not None):
        raise ConfigError(
            "--prompt and --data",
            found="both" if data is not None else "neither",
            expected="one of them",
            fix="Give texts, or a file of prompts.",
        )
    if data is not None and (system is not None or chat_template is not None):
        raise ConfigError(
            "--system and --chat-template",
            found="--data, whose lines contain the conversations",
            expected="--prompt",
            fix='Leave them out; write {"messages"} or {"prompt"} in the file.',
        )
    if data is None:
        given = (sys.stdin.read() if text == "-" else text for text in prompts)
        state = None if how["adapter"] else how["state"]
        about: dict[str, Any] = {"system": system, "template": chat_template, "state": state}
        wanted = [asked(bundle, text, **about) for text in given]
    else:
        with output_of_libraries(), opened(data) as file:
            wanted = read_prompts(file)
    alone = len(wanted) == 1 and data is None and not as_json

    def say(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    with output_of_libraries():
        on_text = say if alone and sys.stderr.isatty() else None
        results = []
        for made in generate_each(bundle, wanted, on_text=on_text, **how):
            results.append(made.as_dict())
            if not alone and sys.stderr.isatty():
                # Not print: standard output is redirected to standard error here.
                say(f"{len(results)} of {len(wanted)}\r")
    if not alone:
        for result in results:
            print(json.dumps(result, allow_nan=False) if as_json else result["text"])
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
    emit(result, [result["text"], "", *table(rows)], as_json=False)
