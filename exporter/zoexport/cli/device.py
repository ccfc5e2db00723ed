"""``zoexport device``: phones connected over adb."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from zoexport.cli import options
from zoexport.cli.console import emit, output_of_libraries, table
from zoexport.cli.groups import Verbs
from zoexport.cli.keys import json_keys
from zoexport.run.progress import Phases
from zoexport.run.results import Generated, Trained

if TYPE_CHECKING:
    from zoexport.api import Bundle
    from zoexport.data.sources import DataSource

_SERIAL = click.option("--serial", help="Serial number of the phone, if several are connected.")
_RUNNER = click.option(
    "--runner",
    type=options.PATH,
    envvar="ZOEXPORT_DEVICE_RUNNER",
    help="Folder with zoexport-runner and its libraries for the phone; they stay on the phone.",
)
_RUN = click.option("--run", default="run", show_default=True, help="Name of the run on the phone.")


@click.group(cls=Verbs)
def device() -> None:
    """Train on a phone that is connected to this computer, over adb.

    The exit code is 1 if there is no adb, no phone, or no runner on the phone.
    """


@device.command("list")
@options.common
@json_keys("""
    devices: list of serial, state, model and abi; model and abi are null if the phone does not
        respond
""")
def list_(as_json: bool) -> None:
    """List the phones that adb sees, with the serial numbers for --serial.

    \b
        zoexport device list
        zoexport device list --json
    """
    from zoexport.tools.device import list_devices

    result = list_devices()
    rows = [
        (entry["serial"], entry["state"], entry["model"] or "", entry["abi"] or "")
        for entry in result["devices"]
    ]
    lines = [f"{len(rows)} phones:", *table(rows)] if rows else ["No phone is connected."]
    emit(result, lines, as_json=as_json)


@device.command()
@options.bundle
@_SERIAL
@_RUNNER
@click.option(
    "--app", is_flag=True, help="Copy to the app, which imports the bundle, instead of the shell."
)
@options.common
@json_keys("""
    serial: serial number of the phone
    bundle: folder on the phone; with --app, the folder of the app
    copied: whether the bundle was copied; false if the phone already had it
    runner: folder of the runner on the phone; null if the existing one is used
""")
def push(bundle: Bundle, serial: str | None, runner: Path | None, app: bool, as_json: bool) -> None:
    """Copy BUNDLE and a runner to a phone.

    With --app, the app checks the bundle, imports it and replaces a bundle of the same name. A run
    that trains the bundle in the app is paused first.

    \b
        zoexport device push model.bundle --runner build/android/runner
        zoexport device push model.bundle --app
    """
    from zoexport.tools.device import push as push_bundle

    with output_of_libraries(), Phases("device", as_json=as_json) as phases:
        result = push_bundle(bundle, serial=serial, runner=runner, app=app, progress=phases)
    word = "Copied to" if result["copied"] else "Already on"
    rows = [(name, result[name]) for name in ("bundle", "runner") if result[name]]
    emit(result, [f"{word} {result['serial']}.", *table(rows)], as_json=as_json)


@device.command()
@options.bundle
@options.data("eval_data")
@click.option("--steps", type=click.IntRange(min=1), required=True, help="Total number of steps.")
@_RUN
@options.validation
@options.settings
@options.resume
@options.engine
@_SERIAL
@_RUNNER
@options.common
@json_keys(
    Trained,
    """
    serial: serial number of the phone
    run: name of the run
    """,
)
def train(
    bundle: Bundle,
    data: DataSource,
    eval_data: DataSource | None,
    eval_every: int | None,
    patience: int | None,
    keep: Literal["last", "best"] | None,
    assignments: tuple[str, ...],
    as_json: bool,
    **given: Any,
) -> None:
    """Train BUNDLE in the shell of a phone; the data is tokenized on this machine.

    The same command resumes a run that was stopped. --set takes the same settings as 'zoexport
    train --set'.

    \b
        zoexport device train model.bundle --data train.jsonl --steps 150
        zoexport device train model.bundle --data train.csv --template sst2 --steps 150
        zoexport device pull model.bundle --state run
    """
    from zoexport.core.config import parse_assignments
    from zoexport.data.sources import opened
    from zoexport.run.train import held_out
    from zoexport.tools.device import train as train_there

    with (
        output_of_libraries(),
        Phases("device", as_json=as_json) as phases,
        opened(data) as file,
        held_out(eval_data, eval_every, patience, keep) as validating,
    ):
        result = train_there(
            bundle,
            data=file,
            settings=parse_assignments(assignments),
            held_out=validating,
            progress=phases,
            on_line=_reported(as_json),
            **given,
        )
    losses = result["losses"]
    rows = [
        ("loss", f"{losses[0]:.4f} at the first step, {losses[-1]:.4f} at the last"),
        *_costs(result),
        ("run", result["run"]),
    ]
    title = f"Trained {result['steps']} steps on {result['serial']}."
    emit(result, [title, *table(rows)], as_json=as_json)


@device.command()
@options.bundle
@click.option(
    "--prompt",
    **options.TEXT,
    required=True,
    help="Prompt to answer or continue. \\n is a line break.",
)
@click.option(
    "--chat-template/--no-chat-template",
    default=True,
    help="Format the prompt with the model's chat template, if any (default), or continue it as "
    "plain text.",
)
@click.option("--run", help="Run on the phone whose weights are used.")
@options.stop
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Maximum tokens of the response.",
)
@options.sampling
@options.engine
@_SERIAL
@_RUNNER
@options.common
@json_keys(
    Generated,
    """
    serial: serial number of the phone
    run: name of the run; null for the bundle as compiled
    """,
)
def generate(bundle: Bundle, prompt: str, as_json: bool, **given: Any) -> None:
    """Generate from BUNDLE on a phone, with the compiled weights or those of a run there.

    \b
        zoexport device generate model.bundle --run run --prompt "Once upon a time"
    """
    from zoexport.tools.device import generate as generate_there

    with output_of_libraries(), Phases("device", as_json=as_json) as phases:
        result = generate_there(
            bundle, prompt=prompt, progress=phases, on_line=lambda _line: None, **given
        )
    rate = result["decode_tokens_per_second"]
    rows = [("speed", "no token" if rate is None else f"{rate:.1f} tokens/s")]
    emit(result, [result["text"], "", *table(rows)], as_json=as_json)


@device.command("runner")
@click.option(
    "-o", "--output", type=options.PATH, default=Path("runner"), show_default=True, metavar="FOLDER"
)
@click.option(
    "--build",
    type=options.PATH,
    help="Folder with zoexport-runner for 64-bit ARM. Default: the build of the checkout.",
)
@click.option("--sysroot", type=options.PATH, help="Folder with the libraries of 64-bit ARM Linux.")
@options.force
@options.common
@json_keys("""
    runner: folder of the runner
    files: list of names
    bytes: total size
""")
def runner_(
    output: Path, build: Path | None, sysroot: Path | None, force: bool, as_json: bool
) -> None:
    """Make a self-contained runner for 64-bit ARM phones, without the NDK.

    It copies the output of 'make device-runner' in the checkout and the libraries of the cross
    compiler.

    \b
        zoexport device runner -o runner
        zoexport device parity model.bundle --runner runner
    """
    from zoexport.tools.device.runner import SYSROOT, make_runner

    made = make_runner(output, build=build, sysroot=sysroot or SYSROOT, force=force)
    rows = [("files", len(made["files"])), ("size", f"{made['bytes'] / 1e6:.1f} MB")]
    emit(made, [f"Made {made['runner']}.", *table(rows)], as_json=as_json)


@device.command()
@options.bundle
@click.option("--state", type=options.PATH, required=True, help="State folder to create.")
@_RUN
@_SERIAL
@options.force
@options.common
@json_keys("""
    serial: serial number of the phone
    run: name of the run
    state: folder of the state
    steps: number of steps of the state
""")
def pull(
    bundle: Bundle, state: Path, run: str, serial: str | None, force: bool, as_json: bool
) -> None:
    """Copy the state of a run of BUNDLE from a phone.

    The copy is checked before it replaces an existing state.

    \b
        zoexport device pull model.bundle --state run
        zoexport adapter export model.bundle --state run -o adapter
    """
    from zoexport.tools.device import pull as pull_state

    with output_of_libraries(), Phases("device", as_json=as_json) as phases:
        result = pull_state(
            bundle, state=state, run=run, serial=serial, force=force, progress=phases
        )
    rows = [(name, result[name]) for name in ("state", "steps")]
    emit(result, [f"Copied from {result['serial']}.", *table(rows)], as_json=as_json)


@device.command()
@options.bundle
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True)
@_SERIAL
@_RUNNER
@options.common
@json_keys("""
    passed: whether every error is within its bound
    steps: number of compared steps
    max_relative_loss_error: largest error of the loss
    max_relative_state_error: largest error of the trained values; null for zeroth-order methods
    same_bits: whether replaying the log of the phone gives its state; null for first-order methods
    relative_gradient_error: error of the projected gradients; null for first-order methods
    signs: same and of, the number of equal signs and of queries; null for first-order methods
    bounds: bound of each error
    serial, phone: serial number, and model with its system
    step_seconds_median, peak_anonymous_mb, peak_rss_mb: time and memory on the phone
""")
def parity(
    bundle: Bundle, steps: int, serial: str | None, runner: Path | None, as_json: bool
) -> int:
    """Compare BUNDLE on a phone with the session on this machine.

    Both run the same steps on the batches of 'zoexport parity' with the same seed. The programs of
    BUNDLE must also run on this machine. Zeroth-order steps are compared at the state of the phone;
    first-order runs are independent. The exit code is 1 if a bound is exceeded.

    \b
        zoexport device parity model.bundle --runner build/android/runner
    """
    from zoexport.tools.device import device_parity

    with output_of_libraries(), Phases("device", as_json=as_json) as phases:
        result = device_parity(bundle, steps=steps, serial=serial, runner=runner, progress=phases)
    rows: list[tuple[str, Any]] = [("loss error", f"{result['max_relative_loss_error']:.2e}")]
    if result["same_bits"] is None:
        rows.append(("state error", f"{result['max_relative_state_error']:.2e}"))
    else:
        rows.append(("noise and updates", "the same bits" if result["same_bits"] else "OTHER BITS"))
        signs = result["signs"]
        rows.append(("gradient error", f"{result['relative_gradient_error']:.2e}"))
        rows.append(("same signs", f"{signs['same']} of {signs['of']} queries"))
    rows += [
        ("bounds", ", ".join(f"{name} {bound:g}" for name, bound in result["bounds"].items())),
        *_costs(result),
    ]
    verdict = "agree" if result["passed"] else "DISAGREE"
    title = f"{result['phone']} and this machine {verdict} over {result['steps']} steps."
    emit(result, [title, *table(rows)], as_json=as_json)
    return 0 if result["passed"] else 1


def _costs(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return time and memory of a call that ran steps."""
    if result["step_seconds_median"] is None:
        return [("time", "the run had them already")]
    return [
        ("time", f"{result['step_seconds_median']:.3f} s a step"),
        (
            "memory",
            f"at most {result['peak_anonymous_mb']} MB anonymous, {result['peak_rss_mb']} MB resident",
        ),
    ]


def _reported(as_json: bool) -> Callable[[str], None]:
    """Return a function that shows the lines that the runner writes after every step."""

    def show(line: str) -> None:
        if not as_json:
            click.echo(f"device: {line}", err=True)

    return show
