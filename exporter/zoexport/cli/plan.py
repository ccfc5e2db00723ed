"""``zoexport plan``."""

from __future__ import annotations

from typing import Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.progress import Phases


@click.command()
@click.argument("model")
@options.method_and_target
@options.recipe
@options.settings
@click.option("--budget-mb", type=float, help="Anonymous memory that training may take.")
@click.option(
    "--process",
    type=click.Choice(["train", "python", "runner"]),
    default="train",
    show_default=True,
    help="What runs the steps: zoexport train, Python with a Session, or zoexport-runner (as an app does).",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=4, show_default=True, help="That compute."
)
@click.option(
    "--labels",
    type=click.IntRange(min=1),
    help="Tokens of a batch that are predicted, where programs are of layers. Default: all.",
)
@options.common
def plan(
    model: str,
    target: str,
    method: str | None,
    recipe: str | None,
    assignments: tuple[str, ...],
    budget_mb: float | None,
    process: str,
    threads: int,
    labels: int | None,
    as_json: bool,
) -> None:
    """Say what training MODEL will take, from its configuration alone.

    Memory, disk, and arithmetic and memory traffic of a step, with every token a label unless --labels says less. MODEL
    is as for compile; a directory needs no more than config.json. With --budget-mb, also which methods and settings
    fit.

    \b
    zoexport plan smollm2-135m --target android-cpu
    zoexport plan ./Qwen2.5-1.5B --target android-cpu --process runner \\
        --set lora.targets=all-linear --budget-mb 100
    """
    from zoexport.core.config import parse_assignments
    from zoexport.plan import plan_training

    settings = parse_assignments(assignments)
    with output_of_libraries(), Phases("plan", as_json=as_json) as phases:
        result = plan_training(
            model,
            method=method,
            target=target,
            settings=settings,
            recipe=recipe,
            budget_mb=budget_mb,
            process=process,
            threads=threads,
            labels=labels,
            progress=phases,
        )
    emit(result, _lines(result), as_json=as_json)


def _lines(result: dict[str, Any]) -> list[str]:
    parts = result["breakdown"]
    others = ", ".join(f"{mb} in {name}" for name, mb in result["anonymous_mb_by_process"].items())
    rows = [
        ("anonymous memory", f"{result['peak_anonymous_mb']} MB ({others})"),
        ("", _listed(parts["anonymous"])),
        ("resident memory", f"at most {result['peak_rss_mb']} MB"),
        ("", _listed(parts["mapped"])),
        ("disk", f"{result['disk_mb']} MB"),
        ("", _listed(parts["disk"])),
        ("compiling", _compiling(result)),
        *([("", _listed(parts["compile"]))] if "compile" in parts else []),
        ("a step", f"{result['flops_per_step'] / 1e9:.1f} GFLOP, {_moved(result)} moved"),
    ]
    settings = result["settings"]
    lines = [
        f"{result['model']} with {result['method']} for {result['target']},"
        f" {settings['batch']} x {settings['seq_len']} tokens:",
        *table(rows),
    ]
    if result["fits"] is not None:
        lines.append(
            f"It {'fits' if result['fits'] else 'does not fit'} {result['budget_mb']:g} MB."
        )
        lines += table([(_command(option), _cost(option)) for option in result["options"]])
    return [*lines, result["advice"]]


def _compiling(result: dict[str, Any]) -> str:
    peak = result["compile_peak_anonymous_mb"]
    if peak is None:
        return f"not known: compiles for {result['target']} were not measured"
    return f"{peak} MB of anonymous memory, on the machine that compiles"


def _listed(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {size}" for name, size in parts.items())


def _moved(result: dict[str, Any]) -> str:
    return f"{result['bytes_per_step'] / 1e9:.1f} GB"


def _command(option: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={value}" for key, value in option["settings"].items())
    return f"{option['method']} {settings}"


def _cost(option: dict[str, Any]) -> str:
    return f"{option['peak_anonymous_mb']} MB, {option['flops_per_step'] / 1e9:.1f} GFLOP a step"
