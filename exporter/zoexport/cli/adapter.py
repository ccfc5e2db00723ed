"""``zoexport adapter export`` and ``zoexport adapter import``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.groups import Verbs
from zoexport.cli.keys import json_keys
from zoexport.run.results import Exported, Imported

if TYPE_CHECKING:
    from zoexport.api import Bundle

F = TypeVar("F", bound=Callable[..., Any])


def exporting(function: F) -> F:
    """Add the options of ``adapter export`` and ``federate export``."""
    for option in (
        options.common,
        options.force,
        click.option(
            "--model",
            help="Original model, if it has moved since compilation; for merged and hf.",
        ),
        click.option(
            "--dtype",
            help="Data type of merged and hf weights: fp16, bf16 or fp32. Default: that of the "
            "original model.",
        ),
        click.option("--outtype", help="Data type of a GGUF file: f32 (default), f16 or q8_0."),
        click.option(
            "-o",
            "--output",
            type=options.PATH,
            required=True,
            help="Folder for the adapter; for gguf, the file.",
        ),
        click.option(
            "--format",
            "kind",
            help="Output format. Adapters: peft (default), mlx or gguf; sparse weights: sparse "
            "(default); full or "
            "sparse weights: hf; merged: the whole model with the trained weights.",
        ),
    ):
        function = option(function)
    return function


def write_adapter(
    bundle: Bundle,
    kind: str | None,
    output: Path,
    as_json: bool,
    push_to_hub: str | None = None,
    **given: Any,
) -> None:
    """Write an adapter with the options of :func:`exporting` and print a summary."""
    from zoexport.run import hub

    with output_of_libraries():
        found = bundle.export_adapter(output, format=kind, **given)
        result = found.as_dict()
        if push_to_hub is not None:
            state, last = given["state"], given["last"]
            hub.write_card(output, bundle, state=state, repo=push_to_hub, last=last)
            result["url"] = hub.push_to_hub(output, push_to_hub)
    names = ("adapter", "steps", "tensors", "url")
    rows = [(name, result[name]) for name in names if name in result]
    emit(result, [f"Exported as {result['format']}.", *table(rows)], as_json=as_json)


@click.group(cls=Verbs)
def adapter() -> None:
    """Export a trained adapter from a state, or import one into a new state."""


@adapter.command("export")
@options.bundle
@click.option("--state", type=options.PATH, help="Trained state. Default: the bundle as compiled.")
@options.last
@click.option(
    "--push-to-hub",
    metavar="REPO",
    help="Also upload the folder with a model card to this repository of the Hugging Face Hub.",
)
@exporting
@json_keys(Exported)
def export(**given: Any) -> None:
    """Write the trained weights of a state of BUNDLE, with the pending update applied.

    Without --state, the weights that the bundle was compiled with are written. merged and hf read
    the original model; docs/export.md describes the formats.

    \b
        zoexport adapter export model.bundle --state run --format peft -o adapter
        zoexport adapter export model.bundle --state run --format gguf -o adapter.gguf
        zoexport adapter export model.bundle --state run --format merged -o model
    """
    write_adapter(**given)


@adapter.command("import")
@options.bundle
@click.option(
    "-i",
    "--input",
    "--adapter",
    "source",
    type=options.PATH,
    required=True,
    help="Adapter to import.",
)
@click.option("--format", "kind", help="Format of the adapter. Default: detected from its files.")
@click.option("--state", type=options.PATH, required=True, help="State folder to create.")
@options.force
@options.common
@json_keys(Imported)
def import_(
    bundle: Bundle, source: Path, kind: str | None, state: Path, force: bool, as_json: bool
) -> None:
    """Create a state of BUNDLE that starts from an adapter.

    The adapter must have the rank, alpha and layers of BUNDLE. 'compile --adapter' makes a bundle
    whose states all start from an adapter.

    \b
        zoexport adapter import model.bundle --adapter ./adapter --state run2
        zoexport train model.bundle --data train.jsonl --state run2 --steps 100
    """
    with output_of_libraries():
        found = bundle.import_adapter(source, state=state, format=kind, force=force)
    result = found.as_dict()
    rows = [(name, result[name]) for name in ("state", "tensors")]
    emit(result, ["Imported.", *table(rows)], as_json=as_json)
