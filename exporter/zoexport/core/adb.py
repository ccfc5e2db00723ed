"""Android's adb as a child process: which phone, its shell, files there and back."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, Any

from zoexport.core.children import ended
from zoexport.core.errors import DeviceError

_READY = "device"
"""The state that adb gives a phone that can be used."""


def find_adb() -> Path:
    """Return the adb on the PATH, or in ``$ANDROID_HOME/platform-tools``.

    Raises:
        DeviceError: there is none.
    """
    home = os.environ.get("ANDROID_HOME")
    folders = [os.environ.get("PATH", ""), *([str(Path(home) / "platform-tools")] if home else [])]
    found = shutil.which("adb", path=os.pathsep.join(folders))
    if found is None:
        raise DeviceError(
            "adb",
            found="no such program on the PATH or in $ANDROID_HOME/platform-tools",
            expected="adb of Android's platform tools",
            fix="Install it (Debian, Ubuntu: apt-get install adb), or set ANDROID_HOME.",
        )
    return Path(found)


def list_devices() -> dict[str, Any]:
    """Return the connected phones: the keys of ``device list --json``.

    Raises:
        DeviceError: there is no adb, or it fails.
    """
    adb = find_adb()
    devices = []
    for serial, state, model in _connected(adb):
        usable = state == _READY
        abi = Phone(adb, serial).abi() if usable else None
        devices.append({"serial": serial, "state": state, "model": model, "abi": abi})
    return {"devices": devices}


def choose_phone(serial: str | None) -> Phone:
    """Return the phone with this serial number, or the only one.

    Raises:
        DeviceError: none, several, another one, or one that did not allow this computer to debug it.
    """
    adb = find_adb()
    connected = {name: state for name, state, _ in _connected(adb)}
    known = ", ".join(connected)
    if not connected:
        raise DeviceError(
            "adb devices",
            found="no phone",
            expected="one, with USB debugging switched on",
            fix="Connect it, allow this computer on its screen, and look with 'zoexport device list'.",
        )
    if serial is None and len(connected) > 1:
        raise DeviceError(
            "adb devices",
            found=f"{len(connected)} phones: {known}",
            expected="one, or the serial of one",
            fix="Pass --serial with one of these.",
        )
    chosen = serial or next(iter(connected))
    if chosen not in connected:
        raise DeviceError(
            f"--serial {chosen}",
            found=f"the phones {known}",
            expected="a phone with this serial number",
            fix="Pass one of these.",
        )
    if connected[chosen] != _READY:
        raise DeviceError(
            f"phone {chosen}",
            found=f"the state '{connected[chosen]}'",
            expected=f"'{_READY}'",
            fix="Allow this computer to debug it, on the phone's screen, or connect it again.",
        )
    return Phone(adb, chosen)


class Phone:
    """One phone, by its serial number. Paths on it are absolute."""

    def __init__(self, adb: Path, serial: str) -> None:
        self._adb = adb
        self.serial = serial

    def abi(self) -> str:
        """Return the machine code that it runs: ``arm64-v8a``, ``x86_64``."""
        return self.shell("getprop", "ro.product.cpu.abi").strip()

    def shell(self, *arguments: object) -> str:
        """Run a command on the phone and return its output.

        Raises:
            DeviceError: its exit code is not 0.
        """
        return _output([self._adb, "-s", self.serial, "shell", _quoted(arguments)])

    def exists(self, path: PurePosixPath) -> bool:
        """Return whether a file or folder exists."""
        return (
            self.shell("sh", "-c", f"test -e {shlex.quote(str(path))} && echo yes || echo no")
            == "yes\n"
        )

    def push(self, source: Path, target: PurePosixPath) -> None:
        """Copy a file, or what a folder holds; ``target`` is whole or as it was before."""
        partial = f"{target}.partial"
        self.shell("rm", "-rf", partial)
        if source.is_dir():
            self.shell("mkdir", "-p", partial)
            # Not the folder itself, which would become another one inside.
            _output([self._adb, "-s", self.serial, "push", f"{source}/.", f"{partial}/"])
        else:
            self.shell("mkdir", "-p", target.parent)
            _output([self._adb, "-s", self.serial, "push", source, partial])
        self.shell("rm", "-rf", target)
        self.shell("mv", partial, target)

    def pull(self, source: PurePosixPath, target: Path) -> None:
        """Copy what a folder holds into a folder that is there."""
        _output([self._adb, "-s", self.serial, "pull", f"{source}/.", target])

    def pull_file(self, source: PurePosixPath, target: Path) -> None:
        """Copy a file."""
        _output([self._adb, "-s", self.serial, "pull", source, target])

    def stream(self, command: str, on_line: Callable[[str], None]) -> tuple[int, str]:
        """Run a shell command on the phone.

        Args:
            command: as the phone's shell reads it.
            on_line: called with every line of its standard error.

        Returns:
            Its exit code, and its standard output.
        """
        process = subprocess.Popen(
            [str(self._adb), "-s", self.serial, "shell", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None and process.stderr is not None
        with ended(process), process.stderr:
            reader = threading.Thread(target=_each_line, args=(process.stderr, on_line))
            reader.start()
            output = process.stdout.read()
            reader.join()
            return process.wait(), output


def _each_line(stream: IO[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        on_line(line.rstrip("\n"))


def _quoted(arguments: tuple[object, ...]) -> str:
    return shlex.join(str(argument) for argument in arguments)


def _connected(adb: Path) -> list[tuple[str, str, str | None]]:
    """Serial number, state and model of each phone."""
    found = []
    for line in _output([adb, "devices", "-l"]).splitlines()[1:]:
        serial, _, rest = line.strip().partition(" ")
        words = rest.split()
        if not words or serial == "*":
            continue
        models = [word.removeprefix("model:") for word in words if word.startswith("model:")]
        found.append((serial, words[0], models[0] if models else None))
    return found


def _output(command: list[object]) -> str:
    line = [str(part) for part in command]
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        said = (
            done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        ).splitlines()
        raise DeviceError(
            " ".join(["adb", *line[1:]]),
            found=said[-1],
            expected="success",
            fix="Look at the phone: is it connected, unlocked, and has it room?",
        )
    return done.stdout
