"""Bundles, the runner and states on a phone; training there with tokens that were made here.

    /data/local/tmp/zoexport/
      runner/              zoexport-runner and its libraries
      bundles/<id>/        by the first 16 digits of the bundle_id
      runs/<id>/<run>/     examples.jsonl, held-out.jsonl and state/
      packed/              packed weights
      app/                 a packed bundle, while the app imports it

Shell users may write and run programs there, and no other place; apps may read what is opened to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from zoexport.core import manifest as manifests
from zoexport.core import outside
from zoexport.core.adb import Phone, choose_phone
from zoexport.core.errors import (
    Cancelled,
    ConfigError,
    DeviceError,
    DivergedError,
    ZoExportError,
)
from zoexport.core.files import atomic_folder
from zoexport.core.progress import Progress
from zoexport.session import Bundle
from zoexport.tools.device.runner import PROGRAM, RUNNER, check_runner
from zoexport.tools.packing import SUFFIX, pack

if TYPE_CHECKING:
    from zoexport.run.train import HeldOut
    from zoexport.session import Sampling

FOLDER = PurePosixPath("/data/local/tmp/zoexport")
APP = "dev.zoexport.app"
"""The app's package."""
RECEIVER = f"{APP}/zoexport.app.background.ImportReceiver"
"""What of it takes a packed bundle from the shell, and answers."""

_ERRORS: Mapping[int, type[ZoExportError]] = {2: ConfigError, 3: DivergedError, 130: Cancelled}
"""The runner's exit codes that are not those of every failure."""

_OF_SETTINGS = ("state.json", "trajectory.log", "run.json")
"""Files of a state that say how many steps it has, and with which settings (docs/formats.md)."""


class Place:
    """Paths of a bundle and of one of its runs on a phone."""

    def __init__(self, bundle: Bundle, run: str) -> None:
        if not run or "/" in run or run.startswith("."):
            raise ConfigError(
                f"--run {run}",
                found="a name that is no file's",
                expected="letters, digits, - and _",
                fix="Choose another name.",
            )
        short = bundle.id[:16]
        self.trust = bundle.trust
        self.bundle = FOLDER / "bundles" / short
        self.run = FOLDER / "runs" / short / run
        self.examples = self.run / "examples.jsonl"
        self.held_out = self.run / "held-out.jsonl"
        self.state = self.run / "state"


def push(
    bundle: Bundle, *, serial: str | None, runner: Path | None, app: bool, progress: Progress
) -> dict[str, Any]:
    """Copy a bundle, and the runner if given, to a phone.

    Args:
        serial: serial number of the phone, if several are connected.
        runner: folder with zoexport-runner and its libraries for the phone; None: already there.
        app: whether the app imports the bundle instead; this needs no runner.

    Returns:
        The keys of ``device push --json``.

    Raises:
        ZoExportError: the bundle, the runner or the phone cannot be used.
    """
    bundle.verify()
    phone = choose_phone(serial)
    if app:
        return _pushed(phone, _push_to_app(bundle, phone, progress), copied=True, runner=None)
    place = Place(bundle, "any")
    target = place.bundle
    if runner is not None:
        check_runner(runner, phone)
        progress("copying the runner", None)
        phone.push(runner, FOLDER / "runner")
        phone.shell("chmod", "-R", "755", FOLDER / "runner")
    if not phone.exists(FOLDER / "runner" / RUNNER):
        raise DeviceError(
            f"phone {phone.serial}",
            found=f"no {FOLDER / 'runner' / RUNNER}",
            expected="the runner, built for the phone",
            fix="Pass --runner with its folder, which 'zoexport device runner' makes (docs/android.md).",
        )
    # A bundle never changes without its id, and a folder appears there whole or not at all.
    there = phone.exists(target)
    if not there:
        _push_packed(bundle, phone, place, progress)
    elif (signature := bundle.path / manifests.SIGNATURE).is_file():
        phone.push(signature, target / manifests.SIGNATURE)  # which may have come later
    return _pushed(phone, target, copied=not there, runner=runner)


def _push_packed(bundle: Bundle, phone: Phone, place: Place, progress: Progress) -> None:
    """Copy a bundle as one file; the phone's runner makes the folder, and compares signature and hashes as it does."""
    packed = PurePosixPath(f"{place.bundle}{SUFFIX}")
    with _packed_there(bundle, phone, packed, progress):
        progress("unpacking the bundle", None)
        _ask(phone, place, "unpack", ["--file", packed], lambda line: None)


@contextlib.contextmanager
def _packed_there(
    bundle: Bundle, phone: Phone, packed: PurePosixPath, progress: Progress
) -> Iterator[None]:
    """Copy a bundle as one file to the phone; delete it when the block ends."""
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        file = Path(folder) / packed.name
        pack(bundle, file, force=False, progress=progress)
        progress("copying the bundle", None)
        phone.push(file, packed)
    try:
        yield
    finally:
        phone.shell("rm", "-f", packed)


def _push_to_app(bundle: Bundle, phone: Phone, progress: Progress) -> str:
    """Copy a bundle as one file, let the app import it, and return the folder in the app."""
    if f"package:{APP}" not in phone.shell("pm", "list", "packages", APP).split():
        raise DeviceError(
            f"phone {phone.serial}",
            found=f"no {APP}",
            expected="the app",
            fix="Install it (android_app/README.md), or leave --app out and pass --runner.",
        )
    packed = FOLDER / "app" / f"{bundle.path.resolve().name}{SUFFIX}"
    with _packed_there(bundle, phone, packed, progress):
        # To the app, another user of the system, the shell's files are closed unless they are opened.
        phone.shell("chmod", "755", FOLDER, packed.parent)
        phone.shell("chmod", "644", packed)
        progress("importing the bundle", None)
        command = ("am", "broadcast", "--include-stopped-packages", "-n", RECEIVER)
        return _imported(phone.shell(*command, "--es", "file", packed), phone)


_RESULT_OK, _RESULT_FAILED = -1, 1
"""Android's own, and the first that is an app's."""
_PARTS = ("where", "found", "expected", "fix")


def _imported(said: str, phone: Phone) -> str:
    """Parse the app's reply to an import: the folder, or the parts of an error, one per line."""
    found = re.search(r'^Broadcast completed: result=(-?\d+), data="(.*)"', said, re.DOTALL | re.M)
    code, data = (int(found[1]), found[2]) if found else (0, "")
    if code == _RESULT_OK:
        return data
    parts = data.split("\n")
    if code != _RESULT_FAILED or len(parts) != len(_PARTS):
        raise DeviceError(
            f"the app on {phone.serial}",
            found="no answer to the import",
            expected="the app of this release, and a phone with memory and time for it",
            fix="Install the app again, or import the file of 'zoexport pack' in the app.",
        )
    where, *rest = parts
    raise DeviceError(f"{where} (on {phone.serial})", **dict(zip(_PARTS[1:], rest, strict=True)))


def _pushed(
    phone: Phone, target: PurePosixPath | str, *, copied: bool, runner: Path | None
) -> dict[str, Any]:
    return {
        "serial": phone.serial,
        "bundle": str(target),
        "copied": copied,
        "runner": None if runner is None else str(FOLDER / "runner"),
    }


def train(
    bundle: Bundle,
    *,
    data: Path,
    steps: int,
    run: str,
    settings: Mapping[str, str],
    recover: bool,
    change_settings: bool,
    held_out: HeldOut | None,
    serial: str | None,
    runner: Path | None,
    progress: Progress,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Train on a phone until the run has ``steps`` steps in total; tokenize on this machine.

    Args:
        bundle: bundle to train; it is pushed if the phone lacks it.
        data: examples as JSON Lines.
        run: name of the run on the phone; a run with a state is continued.
        settings: runtime settings by key; the others are the run's, or the bundle's for a new run.
        recover: whether to continue from the last good record of a damaged log.
        change_settings: whether to continue with other settings or data than the run's.
        held_out: validation set.
        on_line: called with the runner's line after every step.

    Returns:
        The keys of the runner's ``train --json``, with ``serial``, ``run``, ``examples`` and ``shortened``.

    Raises:
        ZoExportError: something cannot be used, the run diverged, or it was stopped.
    """
    from zoexport.methods import runtime_settings
    from zoexport.session.data import reading

    place = Place(bundle, run)
    chosen = runtime_settings(bundle.method, settings)
    phone = choose_phone(serial)
    reads = reading({**_settings_there(phone, place, bundle), **chosen})
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        examples = Path(folder) / "examples.jsonl"
        counts = bundle.write_tokens(data, examples, **reads, progress=progress)
        if held_out is not None:
            tokens = Path(folder) / place.held_out.name
            bundle.write_tokens(held_out.data, tokens, **reads, progress=progress)
        push(bundle, serial=phone.serial, runner=runner, app=False, progress=progress)
        phone.push(examples, place.examples)
        if held_out is not None:
            phone.push(tokens, place.held_out)
    progress("training", None)
    flags = {"--recover": recover, "--change-settings": change_settings}
    given: list[object] = [flag for flag, on in flags.items() if on]
    given += _engine(bundle)
    if held_out is not None:
        given += ["--eval-examples", place.held_out]
        for flag, value in (
            ("--eval-every", held_out.every),
            ("--patience", held_out.patience),
            ("--keep", held_out.keep),
        ):
            given += [] if value is None else [flag, value]
    result = run_there(phone, place, steps, chosen, on_line, given)
    return {**result, "serial": phone.serial, "run": run, **counts}


def _settings_there(phone: Phone, place: Place, bundle: Bundle) -> dict[str, Any]:
    """The settings that a run goes on with: its state's on the phone, before those of the bundle."""
    from zoexport.run.train import settings_of_run

    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        for name in _OF_SETTINGS:
            if phone.exists(place.state / name):
                phone.pull_file(place.state / name, Path(folder) / name)
        return settings_of_run(Path(folder), bundle)


def run_there(
    phone: Phone,
    place: Place,
    steps: int,
    settings: Mapping[str, Any],
    on_line: Callable[[str], None],
    flags: Sequence[object] = (),
) -> dict[str, Any]:
    """Run ``zoexport-runner train`` on a phone; the keys of its ``--json``.

    Raises:
        DeviceError: there is no runner, or it ended without an answer. ZoExportError: what the runner says.
    """
    arguments: list[object] = ["--examples", place.examples, "--state", place.state]
    arguments += ["--steps", steps, *flags]
    for key, value in settings.items():
        text = value if isinstance(value, str) else json.dumps(value)
        arguments += ["--set", f"{key}={text}"]
    return _ask(phone, place, "train", arguments, on_line)


def _engine(bundle: Bundle) -> list[object]:
    return [] if bundle.engine is None else ["--engine", bundle.engine]


def _ask(
    phone: Phone,
    place: Place,
    verb: str,
    arguments: Sequence[object],
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Run a verb of the runner on a phone; the keys of its ``--json``."""
    runner = FOLDER / "runner"
    line: list[object] = [runner / RUNNER, verb, "--bundle", place.bundle, *arguments]
    line += ["--cache", FOLDER / "shaders", "--json"]
    for key in place.trust.keys:
        line += ["--trust", key]
    command = shlex.join(map(str, line))
    # glibc's own loader would take this for its libraries' folder too, and Android's for its own.
    if not phone.exists(runner / PROGRAM):
        command = f"LD_LIBRARY_PATH={runner} {command}"
    code, output = phone.stream(command, on_line)
    return _answer(code, output, phone)


def generate(
    bundle: Bundle,
    *,
    prompt: str,
    chat_template: bool | None,
    run: str | None,
    max_new_tokens: int,
    sampling: Sampling,
    stop: Sequence[str],
    serial: str | None,
    runner: Path | None,
    progress: Progress,
    on_line: Callable[[str], None],
) -> dict[str, Any]:
    """Generate text for a prompt on a phone, with the weights of a run there.

    Args:
        bundle: bundle of the run; it is pushed if the phone lacks it.
        chat_template: whether to use the chat template, if the model has one. None: yes, unless
            the run was trained only on texts without it.
        run: name of the run on the phone; None: the bundle as compiled.
        on_line: called with the runner's progress lines.

    Returns:
        The keys of the runner's ``generate --json``, with ``serial`` and ``run``.

    Raises:
        ZoExportError: something cannot be used.
    """
    place = Place(bundle, run or "any")
    pushed = push(bundle, serial=serial, runner=runner, app=False, progress=progress)
    phone = choose_phone(pushed["serial"])
    arguments: list[object] = ["--prompt", prompt, "--max-new-tokens", max_new_tokens]
    for name, value in dataclasses.asdict(sampling).items():
        arguments += [f"--{name.replace('_', '-')}", value]
    for text in stop:
        arguments += ["--stop", text]
    arguments += _engine(bundle)
    if run is not None:
        if not phone.exists(place.state / "state.json"):
            raise _no_run(phone, place, run)
        arguments += ["--state", place.state]
    if chat_template is None:
        chat_template = run is None or not _learned_texts(phone, place)
    if chat_template and "chat" in bundle.manifest.get("text", {}):
        arguments.append("--chat")
    progress("generating", None)
    result = _ask(phone, place, "generate", arguments, on_line)
    return {**result, "serial": phone.serial, "run": run}


def _learned_texts(phone: Phone, place: Place) -> bool:
    """Return :func:`zoexport.run.states.learned_texts` for a run on the phone."""
    from zoexport.run.states import only_texts

    if not phone.exists(place.state / "run.json"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.json"
        phone.pull_file(place.state / "run.json", record)
        content: Any = outside.parse(record.read_text("utf-8"))
    return only_texts(content.get("data"))


def _no_run(phone: Phone, place: Place, run: str) -> DeviceError:
    return DeviceError(
        f"phone {phone.serial}",
        found=f"no state in {place.state}",
        expected=f"the run '{run}' of this bundle",
        fix="Train it first, or pass --run with the name that it was trained with.",
    )


def _answer(code: int, output: str, phone: Phone) -> dict[str, Any]:
    lines = output.strip().splitlines()
    try:
        answer: dict[str, Any] = outside.parse(lines[-1])
    except (ValueError, IndexError):
        answer = {}
    if code == 0 and answer:
        return answer
    error = answer.get("error")
    if error is None:
        raise DeviceError(
            f"zoexport-runner on {phone.serial}",
            found=f"exit code {code}" + (f" ({lines[-1]})" if lines else ""),
            expected="one line of JSON",
            fix="Was it built for this phone, from this release? Try 'adb shell' with the runner's --help.",
        )
    kind = _ERRORS.get(code, ZoExportError)
    parts = {key: str(error[key]) for key in ("found", "expected", "fix")}
    raise kind(f"{error['where']} (on {phone.serial})", **parts)


def pull(
    bundle: Bundle, *, state: Path, run: str, serial: str | None, force: bool, progress: Progress
) -> dict[str, Any]:
    """Bring a run's state from a phone.

    Args:
        bundle: whose run it is.
        state: the folder to create.
        run: the run's name there.
        force: whether a folder that is there gives way.

    Returns:
        The keys of ``device pull --json``.

    Raises:
        ZoExportError: there is no such run, or the state cannot be used.
    """
    place = Place(bundle, run)
    phone = choose_phone(serial)
    if not phone.exists(place.state / "state.json"):
        raise _no_run(phone, place, run)
    progress("copying the state", None)
    with atomic_folder(state, replace=force) as folder:
        phone.pull(place.state, folder)
        with bundle.session() as session:
            session.attach(folder, read_only=True, last=True)
            steps = session.info.steps
    return {"serial": phone.serial, "run": run, "state": str(state), "steps": steps}
