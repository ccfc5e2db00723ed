"""Phones that are folders (tests/support/fake_adb.py), and verbs of ``zoexport device`` on them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import ROOT
from zoexport.cli.main import run
from zoexport.tools.device.runs import APP

SERIAL = "R58M12345"


def install_phones(folder: Path, monkeypatch: pytest.MonkeyPatch, abi: str = "x86_64") -> Path:
    """Put an ``adb`` first on the PATH; the folder of its phones, with one phone."""
    phones = folder / "phones"
    add_phone(phones, SERIAL, abi)
    program = folder / "bin" / "adb"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.support.fake_adb "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.delenv("ANDROID_HOME", raising=False)
    monkeypatch.setenv("FAKE_PHONES", str(phones))
    return phones


def add_phone(phones: Path, serial: str, abi: str = "x86_64", soc: str = "SM8650") -> Path:
    """Add a phone for that machine code and chip; its folder."""
    phone = phones / serial
    (phone / "data" / "local" / "tmp").mkdir(parents=True, exist_ok=True)
    properties = {
        "ro.product.cpu.abi": abi,
        "ro.product.model": "Fake Phone",
        "ro.soc.model": soc,
        "ro.build.version.release": "15",
    }
    (phone / "properties.json").write_text(json.dumps(properties))
    return phone


def install_app(phones: Path, serial: str = SERIAL) -> Path:
    """Install the app on a phone; the folder of its own."""
    folder = phones / serial / "data" / "user" / "0" / APP
    folder.mkdir(parents=True)
    return folder


def said(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    """What a verb prints with --json; of a failure its message's parts."""
    assert run(["device", *map(str, arguments), "--json"]) == code, capfd.readouterr().err
    (line,) = capfd.readouterr().out.splitlines()
    answer: dict[str, Any] = json.loads(line)
    return answer.get("error", answer)
