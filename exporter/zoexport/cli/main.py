"""``zoexport``: the command group, and the conversion of failures to messages and exit codes."""

from __future__ import annotations

import json
import logging
import os
import shlex
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import click
from click.exceptions import NoArgsIsHelpError

from zoexport.cli.adapter import adapter
from zoexport.cli.bench import bench
from zoexport.cli.chat import chat
from zoexport.cli.compile import compile_verb
from zoexport.cli.completion import VARIABLE, answered, completion
from zoexport.cli.console import INTERNAL_EXIT_CODE, emit_error
from zoexport.cli.data import data
from zoexport.cli.device import device
from zoexport.cli.federate import federate
from zoexport.cli.finetune import finetune
from zoexport.cli.generate import generate
from zoexport.cli.groups import Verbs
from zoexport.cli.info import doctor, inspect, methods, recipes, targets
from zoexport.cli.pack import pack, unpack
from zoexport.cli.parity import parity
from zoexport.cli.plan import plan
from zoexport.cli.report import report
from zoexport.cli.sensitivity import sensitivity
from zoexport.cli.sign import sign
from zoexport.cli.train import evaluate, train
from zoexport.core.errors import STOPPED, Cancelled, ConfigError, ZoExportError, first_line
from zoexport.core.version import __version__
from zoexport.core.wording import command_line


@click.group(
    cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="zoexport", message="%(prog)s %(version)s")
def cli() -> None:
    """Compile a language model into a bundle that fine-tunes itself on a phone.

    \b
        zoexport finetune smollm2-135m --data mails.jsonl
        zoexport compile smollm2-135m --target android-cpu -o model.bundle
        zoexport train model.bundle --data train.jsonl --state run --steps 150
        zoexport eval model.bundle --data test.jsonl --state run
        zoexport generate model.bundle --state run --prompt "Once upon a time"
        zoexport adapter export model.bundle --state run --format peft -o adapter
    """


for verb in (
    finetune,
    plan,
    sensitivity,
    compile_verb,
    data,
    train,
    evaluate,
    report,
    generate,
    chat,
    parity,
    bench,
    adapter,
    device,
    federate,
    sign,
    pack,
    unpack,
    inspect,
    doctor,
    completion,
    methods,
    recipes,
    targets,
):
    cli.add_command(verb)


def main() -> None:
    """Run the console script."""
    instruction = os.environ.get(VARIABLE)
    sys.exit(answered(cli, instruction) if instruction else run(sys.argv[1:]))


@command_line()
def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every failure ends as one message."""
    if not arguments:
        return _say_next()
    as_json = "--json" in arguments
    debug = "--debug" in arguments
    restore = signal.getsignal(signal.SIGTERM)
    silent = logging.root.manager.disable
    try:
        signal.signal(signal.SIGTERM, _interrupt)
        _quiet_libraries(debug)
        # Not cli.main: that prints by itself when the user interrupts.
        with cli.make_context("zoexport", list(arguments)) as context:
            return _exit_code(cli.invoke(context))
    except click.exceptions.Exit as end:  # --help and --version
        return end.exit_code
    except BrokenPipeError:
        # The reader of standard output has closed it: discard what is still buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except BaseException as error:
        if isinstance(error, (SystemExit, GeneratorExit)):
            raise
        if debug:
            traceback.print_exception(error)
        problem, code = _as_our_error(error)
        return emit_error(problem, as_json=as_json, exit_code=code)
    finally:
        signal.signal(signal.SIGTERM, restore)
        logging.disable(silent)


def _say_next() -> int:
    """Print the next step, for ``zoexport`` without arguments."""
    ours = f"zoexport {__version__}: a language model that fine-tunes itself on a phone."
    print("\n".join([ours, *_next_step(Path.cwd()), "'zoexport --help' lists all verbs."]))
    return 0


def _next_step(folder: Path) -> list[str]:
    """Return lines that suggest one command, or a few if the user has the choice.

    Args:
        folder: folder in which to look for bundles and states, not in its subfolders.
    """
    from zoexport.core.manifest import FILE as MANIFEST
    from zoexport.core.native import native_folder

    if not native_folder().is_dir():
        return _lines(
            "The native library is missing. Next, for the command that installs it:",
            "zoexport doctor --fix",
        )
    bundles = {found: path for path, found in _with_id(folder, MANIFEST)}
    if not bundles:
        return _lines(
            "There is no bundle in this folder. Next, compile one:",
            "zoexport compile smollm2-135m --target android-cpu",
        )
    pairs = [(bundles[of], state) for state, of in _with_id(folder, "state.json") if of in bundles]
    if not pairs:
        bundle = _quoted(next(iter(bundles.values())))
        return _lines(
            f"The bundle {bundle} is not trained yet. Next, with examples in train.jsonl:",
            f"zoexport train {bundle} --data train.jsonl --state run --steps 100",
        )
    bundle, state = (_quoted(path) for path in pairs[0])
    return _lines(
        f"The state {state} was trained with the bundle {bundle}. Next, one of these:",
        f'zoexport generate {bundle} --state {state} --prompt "Once upon a time"',
        f"zoexport eval {bundle} --state {state} --data test.jsonl",
        f"zoexport adapter export {bundle} --state {state} -o adapter",
    )


def _lines(why: str, *commands: str) -> list[str]:
    return [why, *(f"    {command}" for command in commands)]


def _quoted(path: Path) -> str:
    return shlex.quote(path.name)


def _with_id(folder: Path, file: str) -> Iterator[tuple[Path, str]]:
    """Yield folders that contain ``file``, the newest first, and the bundle id in it."""
    found = [path for path in folder.glob(f"*/{file}") if path.is_file()]
    for path in sorted(found, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue  # opening it reports the error
        if isinstance(content, dict) and isinstance(content.get("bundle_id"), str):
            yield path.parent, content["bundle_id"]


def _exit_code(returned: object) -> int:
    """Return the exit code of a command, which returns None or an exit code (doctor, parity)."""
    return returned if isinstance(returned, int) else 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _quiet_libraries(debug: bool) -> None:
    """Hide warnings and logs of libraries, unless ``--debug`` is set."""
    if debug:
        return
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name, value in {
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }.items():
        os.environ.setdefault(name, value)


def _as_our_error(error: BaseException) -> tuple[ZoExportError, int]:
    """Return any failure as an error with a message, and its exit code."""
    if isinstance(error, Cancelled) and error.found == STOPPED and error.where.startswith("step "):
        fix = "Progress is saved; run the same command to continue."
        error = Cancelled(error.where, found=error.found, expected=error.expected, fix=fix)
    if isinstance(error, ZoExportError):
        return error, error.exit_code
    if isinstance(error, NoArgsIsHelpError):
        path = error.ctx.command_path if error.ctx else "zoexport"
        verbs = error.ctx.command if error.ctx else cli
        known = ", ".join(verbs.commands) if isinstance(verbs, click.Group) else "arguments"
        problem: ZoExportError = ConfigError(
            path, found="no verb", expected=f"one of {known}", fix=f"Run '{path} --help'."
        )
        return problem, problem.exit_code
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "zoexport"
        message = error.format_message().rstrip(".")
        message = message[:1].lower() + message[1:]
        usage = error.ctx.get_usage().removeprefix("Usage: ") if error.ctx else "zoexport VERB"
        problem = ConfigError(path, found=message, expected=usage, fix=f"Run '{path} --help'.")
        return problem, problem.exit_code
    if isinstance(error, KeyboardInterrupt):
        problem = Cancelled(
            "your request",
            found=STOPPED,
            expected="to run to the end",
            fix="Run the same command again; a training run continues from its saved progress.",
        )
        return problem, problem.exit_code
    if isinstance(error, OSError):
        problem = ZoExportError(
            f"file {error.filename}" if error.filename else "this machine",
            found=error.strerror or first_line(error),
            expected="files and folders that can be read and written",
            fix="Check the path, its permissions and the free space, also of TMPDIR.",
        )
        return problem, problem.exit_code
    if isinstance(error, MemoryError | RecursionError):
        problem = ZoExportError(
            "zoexport",
            found=f"not enough memory ({first_line(error)})",
            expected="a model and data that fit this machine",
            fix="Use smaller files, or a machine with more memory.",
        )
        return problem, problem.exit_code
    problem = ZoExportError(
        "zoexport",
        found=f"a defect ({type(error).__name__}: {first_line(error)})",
        expected="every failure to be explained",
        fix="Run again with --debug and report the traceback.",
    )
    return problem, INTERNAL_EXIT_CODE
