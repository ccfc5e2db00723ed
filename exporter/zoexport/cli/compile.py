"""``zoexport compile``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, size, table
from zoexport.cli.keys import json_keys
from zoexport.core import keywords
from zoexport.run.progress import COMPILE, Phases


@click.command("compile")
@click.argument("model")
@options.method_and_target
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="Folder for the bundle. Default: ./<model>-<method>-<target>.",
)
@options.recipe
@options.typed(*keywords.COMPILE)
@options.settings
@options.force
@click.option(
    "--allow-fallback",
    is_flag=True,
    help="Allow matrix products on the CPU if the target's accelerator does not support them.",
)
@click.option(
    "--calibration",
    type=options.PATH,
    help="Calibration examples, JSON Lines (android-npu, activation_bits=8, "
    "lora.init_weights=activations).",
)
@click.option(
    "--adapter",
    type=options.PATH,
    help="Start from this adapter of PEFT's; its rank, alpha and layers count.",
)
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Run every program and compare losses and gradients with PyTorch before the bundle is written. "
    "Default: on, except for android-npu.",
)
@options.common
@json_keys("""
    bundle: folder of the bundle
    method, target: names
    bytes: size of the bundle
    seconds: duration
    programs: list of names
    delegates: number of delegates
    delegate_list, fallback_ops, fallback_reasons: by program, the delegates, the operators outside
        them, and why these are outside
    notes: list of remarks, such as why the bundle cannot generate
    verified: passed (null if nothing ran), reason, and the relative errors loss, gradient and state
        (null if not compared)
""")
def compile_verb(
    model: str,
    target: str,
    method: str | None,
    output: Path | None,
    recipe: str | None,
    assignments: tuple[str, ...],
    force: bool,
    allow_fallback: bool,
    calibration: Path | None,
    adapter: Path | None,
    verify: bool | None,
    as_json: bool,
) -> None:
    """Compile MODEL into a bundle.

    MODEL is a Hugging Face directory, a GGUF file, a hub id, smollm2-135m (a packaged copy of
    SmolLM2-135M-Instruct with the weights of its Q4_1 file), or shape:NAME, random weights of a
    published configuration. It must be a model for text generation or fill-mask.

    Before the bundle is written, another process opens it, generates a token, evaluates a sequence
    and takes steps, and compares the loss, gradients and the update with PyTorch. If the runtime of
    the target is not on this machine, the bundle is written and reported as not verified.

    The exit code is 1 and nothing is written if a program does not run or its results differ, or if
    the accelerator does not support some matrix products and --allow-fallback is not given.

    'optimum-cli export zoexport --model MODEL' takes the same options and makes the same bundle.

    \b
        zoexport compile smollm2-135m --target android-cpu
        zoexport compile HuggingFaceTB/SmolLM2-135M-Instruct --target android-cpu
        zoexport compile ./Qwen2-0.5B --target android-cpu --method prge \\
            --max-length 128 --lora-r 8 -o qwen.bundle
    """
    from zoexport import api
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Phases("compile", as_json=as_json, ways=COMPILE) as phases:
        bundle = api.compile(
            model,
            method=method,
            target=target,
            output=output,
            settings=settings,
            recipe=recipe,
            force=force,
            allow_fallback=allow_fallback,
            calibration=calibration,
            adapter=adapter,
            verify=verify,
            progress=phases,
        )
    assert bundle.compiled is not None
    result = bundle.compiled
    fallback = {name: sum(operators.values()) for name, operators in result["fallback_ops"].items()}
    rows = [
        ("bundle", result["bundle"]),
        ("size", size(result["bytes"])),
        ("programs", ", ".join(result["programs"])),
        ("delegates", result["delegates"]),
        ("outside delegates", ", ".join(f"{name} {n} ops" for name, n in fallback.items())),
        ("verified", _verified(result["verified"])),
        ("time", f"{result['seconds']:.1f} s"),
    ]
    lines = [f"Compiled for {result['target']} with {result['method']}.", *table(rows)]
    lines += [f"Note: {note}." for note in result["notes"]]
    emit(result, lines, as_json=as_json)


def _verified(found: dict[str, Any]) -> str:
    if found["passed"] is None:
        return f"not verified here: {found['reason']}"
    errors = [(key, found[key]) for key in ("loss", "gradient", "state") if found[key] is not None]
    if not errors:
        return f"every program ran; not compared: {found['reason']}"
    return "relative errors: " + ", ".join(f"{key} {error:.0e}" for key, error in errors)
