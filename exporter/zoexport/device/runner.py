"""The runner for a phone: a folder with zoexport-runner and the libraries that it needs."""

from __future__ import annotations

import struct
from pathlib import Path

from zoexport.core.errors import DeviceError
from zoexport.device.adb import Phone

RUNNER = "zoexport-runner"
_MACHINES = {"arm64-v8a": 183, "x86_64": 62}
"""e_machine of an ELF file for each of Android's 64-bit ABIs."""


def check_runner(folder: Path, phone: Phone) -> None:
    """Refuse a runner that the phone cannot start.

    Raises:
        DeviceError: there is none, it is no program, or it is one for another processor.
    """
    path = folder / RUNNER
    abi = phone.abi()
    try:
        head = path.read_bytes()[:20]
    except OSError as error:
        raise DeviceError(
            f"--runner {folder}",
            found=f"no {RUNNER} ({(error.strerror or str(error)).lower()})",
            expected=f"a folder with {RUNNER} and its libraries",
            fix="Build it for the phone (docs/device.md).",
        ) from error
    machine = struct.unpack_from("<H", head, 18)[0] if head[:5] == b"\x7fELF\x02" else None
    if machine is None or machine != _MACHINES.get(abi):
        known = {number: name for name, number in _MACHINES.items()}
        raise DeviceError(
            f"{path}",
            found="no 64-bit program"
            if machine is None
            else f"a program for {known.get(machine, f'machine {machine}')}",
            expected=f"one for {abi}, which {phone.serial} runs",
            fix="Build it for that processor (docs/device.md).",
        )
