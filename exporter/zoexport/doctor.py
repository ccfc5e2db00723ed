"""``doctor``: what this installation has, what it lacks, and how to get it."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from zoexport import __version__
from zoexport.core.native import FIX
from zoexport.core.resources import in_checkout
from zoexport.fetch import cache_dir

_LOW_DISK_BYTES = 5e9
_AGAIN = "Install zoexport again."
_EXTRA = re.compile(r"zoexport\[([\w-]+)\]")
"""Of an advice to install an extra."""
#: Packages by what needs them; the optional ones name their extra.
_PACKAGES = {
    "torch": "",
    "executorch": "",
    "accelerate": "",
    "torchao": "",
    "transformers": "",
    "optimum": "",
    "tokenizers": "",
    "safetensors": "",
    "gguf": "",
    "numpy": "",
    "mlx": "ios-mlx",
    "peft": "peft",
    "matplotlib": "plot",
    "jinja2": "report",
    "tensorboard": "report",
    "trackio": "report",
}


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``status`` is ok, missing (training needs it) or optional."""

    name: str
    status: str
    found: str
    fix: str = ""


def examine() -> dict[str, Any]:
    """Look at everything; ``ok`` is whether compiling and training can work."""
    checks = [
        Check("zoexport", "ok", __version__),
        _python(),
        *_packages(),
        _native(),
        _qnn(),
        *_vulkan(),
        *_targets(),
        *_places(),
    ]
    return {
        "command": _command(checks),
        "ok": all(check.status != "missing" for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def _command(checks: list[Check]) -> str | None:
    """The one command that gets what training needs; where all of that is there, what else there is to install."""
    if any(check.fix in (FIX, _AGAIN) for check in checks):
        if in_checkout():
            return "make setup"
        # Of the file: no registry has the package.
        wheel = f"zoexport-{__version__}-*.whl"
        return f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {wheel}"
    wrong = [check.fix for check in checks if check.status != "ok"]
    extras = sorted({name for fix in wrong for name in _EXTRA.findall(fix)})
    if not extras:
        return None
    return f"{shlex.quote(sys.executable)} -m pip install 'zoexport[{','.join(extras)}]'"


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check("python", "ok", found)


def _packages() -> Iterator[Check]:
    for name, extra in _PACKAGES.items():
        try:
            yield Check(name, "ok", version(name))
        except PackageNotFoundError:
            if extra:
                yield Check(name, "optional", "not installed", f"pip install 'zoexport[{extra}]'.")
            else:
                yield Check(name, "missing", "not installed", _AGAIN)


def _native() -> Check:
    """Load the session's library in another process, where a crash would be seen and survived."""
    name = "session library"
    probe = "from zoexport.session import abi_version; print(abi_version())"
    answer = _ask(probe)
    if answer.returncode == 0:
        return Check(name, "ok", f"loads, ABI version {answer.stdout.strip()}")
    return Check(name, "missing", _last_line(answer), FIX)


def _ask(probe: str) -> subprocess.CompletedProcess[str]:
    """Run a line of Python in another process."""
    return subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _last_line(answer: subprocess.CompletedProcess[str]) -> str:
    lines = answer.stderr.strip().splitlines() or [f"ended with status {answer.returncode}"]
    return lines[-1]


def _qnn() -> Check:
    """Qualcomm's libraries and their version, which they say themselves: in another process, as above."""
    from zoexport.core.types import Problem
    from zoexport.targets.qnn import library as qnn_library

    name = "Qualcomm QNN"
    library = qnn_library.find()
    if isinstance(library, Problem):
        return Check(name, "optional", library.reason, library.fix)
    how = "through zoexport's proxy" if library.proxy else "as they are"
    probe = "from zoexport.targets.qnn import library; print(library.build_id())"
    answer = _ask(probe)
    if answer.returncode == 0:
        build = answer.stdout.strip().splitlines()[-1]
        return Check(name, "ok", f"{build}, libraries of {library.source}, used {how}")
    return Check(name, "optional", _last_line(answer), f"Install {library.source} again.")


def _vulkan() -> Iterator[Check]:
    """The devices of Vulkan, whose drivers are loaded in another process, as above."""
    name = "Vulkan"
    answer = _ask(
        "import json; from zoexport.session import vulkan_devices as v; print(json.dumps(v()))"
    )
    if answer.returncode != 0:
        fix = "Install the GPU's driver (Debian: mesa-vulkan-drivers); android-gpu needs one to run here."
        yield Check(name, "optional", _last_line(answer), fix)
        return
    devices = json.loads(answer.stdout.splitlines()[-1])
    for number, device in enumerate(devices):
        found = f"{device['name']} ({device['kind']}), Vulkan {device['version']}"
        if device["problem"]:
            yield Check(f"{name} device {number}", "optional", f"{found}: {device['problem']}")
        else:
            lacks = f", without {device['lacks']}" if device["lacks"] else ""
            yield Check(f"{name} device {number}", "ok", found + lacks)
    if not devices:
        yield Check(name, "optional", "a library, and no device", "Install the GPU's driver.")


def _targets() -> Iterator[Check]:
    from zoexport.describe import list_targets

    for target in list_targets():
        name = f"target {target['name']}"
        if target["available"]:
            yield Check(name, "ok", target["summary"])
        else:
            reasons = "; ".join(problem["reason"] for problem in target["problems"])
            fixes = " ".join(problem["fix"] for problem in target["problems"])
            yield Check(name, "optional", reasons, fixes)


def _places() -> Iterator[Check]:
    cache = cache_dir()
    # The nearest folder that exists decides whether the cache can be made.
    place = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    if os.access(place, os.W_OK | os.X_OK):
        yield Check("model cache", "ok", str(cache))
    else:
        yield Check(
            "model cache",
            "missing",
            f"{cache} cannot be written",
            "Set ZOEXPORT_CACHE to a folder that can be written.",
        )
    for name, folder in (("disk, model cache", place), ("disk, working folder", Path.cwd())):
        free = shutil.disk_usage(folder).free
        text = f"{free / 1e9:.0f} GB free"
        if free >= _LOW_DISK_BYTES:
            yield Check(name, "ok", text)
        else:
            yield Check(name, "optional", text, "Free some space: a model needs several gigabytes.")
