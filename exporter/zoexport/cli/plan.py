"""``zoexport plan``."""

from __future__ import annotations

from typing import Any

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.keys import json_keys
from zoexport.run.progress import Phases

_STEPS = 100


@click.command()
@click.argument("model")
@options.method_and_target
@options.recipe
@options.settings
@click.option("--budget-mb", type=float, help="Budget in MB for anonymous memory in training.")
@click.option(
    "--process",
    type=click.Choice(["train", "python", "runner"]),
    default="train",
    show_default=True,
    help="Process that trains: zoexport train, Python with a Session, or zoexport-runner (as in "
    "apps).",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Number of compute threads.",
)
@click.option(
    "--labels",
    type=click.IntRange(min=1),
    help="Predicted tokens per batch, with granularity=layer. Default: all.",
)
@click.option(
    "--ram",
    type=float,
    metavar="MB",
    help="Memory for training, with mapped files; shows what a step then reads from disk.",
)
@click.option(
    "--disk-mb-s", type=float, metavar="N", help="Read speed of the disk in MB/s, for --ram."
)
@options.common
@json_keys(
    """
    model, method, target, settings, process, threads: what was planned
    peak_anonymous_mb: anonymous memory of the process that trains
    anonymous_mb_by_process: the same for each --process
    compile_peak_anonymous_mb: anonymous memory of 'zoexport compile'; null for targets whose
        compilation was not measured
    peak_rss_mb: anonymous memory and every page of mapped files; an upper bound, as the system may
        drop these pages
    disk_mb: bundle, and a state with two snapshots
    flops_per_step: operations of matrix products, with recomputation; a multiply-add is two
    bytes_per_step: bytes that programs read and write
    seconds_per_step: time of a step on this machine, from a measurement of half a second
    breakdown: MB of each part of anonymous, mapped, disk and compile (if known)
    budget_mb, fits: budget, and whether peak_anonymous_mb fits; null without --budget-mb
    advice: recommended next step
    """,
    others={
        "with --budget-mb": """
            options: list of method, settings (to add to yours), first_order and the figures
            """,
        "with --ram": """
            ram_mb: memory for training, with mapped files
            from_disk_mb_per_step: MB of weights that each step reads from disk
            disk_seconds_per_step: minimum time for that; null without --disk-mb-s
            kept: activation_cache_mb that fits, keep_mb_of_all_layers, flops_per_step with it and
                flops_per_step_without; only if the target has the setting
            """,
    },
)
def plan(model: str, assignments: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Estimate the cost of training MODEL from its configuration.

    Shows memory, disk space, and operations and memory traffic per step, for full batches with
    every token as a label unless --labels is given. MODEL is as for compile; a directory only needs
    config.json, and no weights are read. --budget-mb also lists the methods and settings that fit,
    first-order methods first, as they need 10 to 100 times fewer steps. --ram shows what a step
    reads from disk if memory does not hold the weights.

    \b
        zoexport plan smollm2-135m --target android-cpu
        zoexport plan ./Qwen2.5-1.5B --target android-cpu --process runner \\
            --set lora.target_modules=all-linear --budget-mb 100
        zoexport plan shape:gemma3-4b --target android-cpu --ram 600 --disk-mb-s 800
    """
    from zoexport.api.verbs import plan as run
    from zoexport.core.config import parse_assignments

    settings = parse_assignments(assignments)
    with output_of_libraries(), Phases("plan", as_json=as_json) as shown:
        result = run(model, settings=settings, progress=shown, **given).as_dict()
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
        ("time here", _time(result["seconds_per_step"])),
    ]
    if "ram_mb" in result:
        rows.append((f"in {result['ram_mb']:g} MB", _disk(result)))
    if "kept" in result:
        rows.append(("", _kept(result["kept"])))
    settings = result["settings"]
    lines = [
        f"{result['model']} with {result['method']} for {result['target']},"
        f" {settings['batch_size']} x {settings['max_length']} tokens:",
        *table(rows),
    ]
    if result["fits"] is not None:
        lines.append(
            f"It {'fits' if result['fits'] else 'does not fit'} {result['budget_mb']:g} MB."
        )
        lines += table([(_command(option), _cost(option)) for option in result["options"]])
    return [*lines, result["advice"]]


def _time(seconds: float) -> str:
    minutes = seconds * _STEPS / 60
    return f"about {seconds:.2g} s per step, {minutes:.2g} minutes for {_STEPS} steps"


def _disk(result: dict[str, Any]) -> str:
    seconds = result["disk_seconds_per_step"]
    least = "" if seconds is None else f", at least {seconds:g} s"
    return f"{result['from_disk_mb_per_step']} MB of weights from the disk in every step{least}"


def _kept(kept: dict[str, int]) -> str:
    most, fits = kept["keep_mb_of_all_layers"], kept["activation_cache_mb"]
    if not fits:
        return f"no room to keep results for the backward pass; activation_cache_mb={most} would hold all layers"
    share = kept["flops_per_step"] / kept["flops_per_step_without"]
    which = "all layers" if fits >= most else f"some layers (all: {most})"
    return f"activation_cache_mb={fits} fits, for {which}: {share:.2f} of the arithmetic without"


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
