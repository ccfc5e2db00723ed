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

from zoexport.core.errors import Problem
from zoexport.core.fetch import cache_dir
from zoexport.core.native import FIX
from zoexport.core.resources import checkout
from zoexport.core.version import __version__

_LOW_DISK_BYTES = 5e9
_AGAIN = "Install zoexport again."
_EXTRA = re.compile(r"zoexport\[([\w-]+)\]")
"""The extra that a fix installs."""
_DEBIAN = re.compile(r"\(on Debian: ([^)]+)\)")
"""The system packages that a fix installs."""
_REBUILD = "build zoexport again"
"""Part of a fix that needs the native library to be built again."""
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
# Libraries may print when they are loaded; the answer is the last line.
_PROBE = """
import importlib, json, sys
from zoexport.core.errors import ZoExportError
module, function = sys.argv[1:]
try:
    answer = {"result": getattr(importlib.import_module(module), function)()}
except ZoExportError as error:
    answer = {"reason": f"{error.found}; expected {error.expected}", "fix": error.fix}
except Exception as error:
    answer = {"reason": str(error) or type(error).__name__}
print()
print(json.dumps(answer))
"""


_UNVERIFIED = "unverified: this package was compiled for macOS on Linux, and no Mac has run it"


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at. ``status`` is ok, missing (training needs it) or optional."""

    name: str
    status: str
    found: str
    fix: str = ""


def examine() -> dict[str, Any]:
    """Look at everything; ``ok`` is whether compiling and training can work."""
    native = _native()
    # Vulkan's devices are listed by the session library, so that without it there is one problem.
    devices = _vulkan() if native.status == "ok" else ()
    checks = [
        Check("zoexport", "ok", __version__),
        *_python(),
        *_packages(),
        native,
        _qnn(),
        *devices,
        *_targets(),
        *_places(),
    ]
    return {
        "command": _command(checks),
        "ok": all(check.status != "missing" for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }


def _command(checks: list[Check]) -> str | None:
    """Return the command that installs what training needs, or else the optional packages."""
    if any(check.fix in (FIX, _AGAIN) for check in checks):
        if checkout():
            return "make setup"
        # The wheel file, as no registry has the package.
        wheel = f"zoexport-{__version__}-*.whl"
        return f"{shlex.quote(sys.executable)} -m pip install --force-reinstall {wheel}"
    fixes = " ".join(check.fix for check in checks if check.status != "ok")
    commands = []
    packages = sorted({name for names in _DEBIAN.findall(fixes) for name in names.split(", ")})
    if packages and shutil.which("apt-get"):
        commands.append(" ".join(["apt-get install", *packages]))
        if _REBUILD in fixes and checkout():
            commands.append("make setup")
    extras = sorted(set(_EXTRA.findall(fixes)))
    if extras:
        commands.append(
            f"{shlex.quote(sys.executable)} -m pip install 'zoexport[{','.join(extras)}]'"
        )
    return " && ".join(commands) or None


def _python() -> Iterator[Check]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Check("python", "ok", found)
    if sys.platform == "darwin":
        yield Check("macos", "optional", _UNVERIFIED, "Report what fails; Linux is tested.")


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
    name = "session library"
    version = _ask("zoexport.session", "abi_version")
    if isinstance(version, Problem):
        return Check(name, "missing", version.reason, FIX)
    return Check(name, "ok", f"loads, ABI version {version}")


def _ask(module: str, function: str) -> Any:
    """Call a function without arguments in another process, so that a crash of a library is survived.

    Returns:
        The result, or a Problem if the call failed.
    """
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, module, function],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode != 0:
        reason = f"{function} ended the process with status {done.returncode}"
        return Problem(module, reason, _AGAIN)
    answer = json.loads(done.stdout.splitlines()[-1])
    if "reason" in answer:
        return Problem(module, answer["reason"], answer.get("fix", _AGAIN))
    return answer["result"]


def _qnn() -> Check:
    """Find Qualcomm's libraries and ask them for their version."""
    from zoexport.core import qnn

    name = "Qualcomm QNN"
    library = qnn.find()
    if isinstance(library, Problem):
        return Check(name, "optional", library.reason, library.fix)
    how = "through zoexport's proxy" if library.proxy else "as they are"
    build = _ask(qnn.__name__, "build_id")
    if isinstance(build, Problem):
        return Check(name, "optional", build.reason, build.fix)
    return Check(name, "ok", f"{build}, libraries of {library.source}, used {how}")


def _vulkan() -> Iterator[Check]:
    """List the Vulkan devices."""
    name = "Vulkan"
    devices = _ask("zoexport.session", "vulkan_devices")
    if isinstance(devices, Problem):
        yield Check(name, "optional", devices.reason, devices.fix)
        return
    for number, device in enumerate(devices):
        found = f"{device['name']} ({device['kind']}), Vulkan {device['version']}"
        if device["problem"]:
            yield Check(f"{name} device {number}", "optional", f"{found}: {device['problem']}")
        else:
            lacks = f", without {device['lacks']}" if device["lacks"] else ""
            yield Check(f"{name} device {number}", "ok", found + lacks)
    if not devices:
        fix = "Install the GPU's driver (on Debian: mesa-vulkan-drivers)."
        yield Check(name, "optional", "a library, and no device", fix)


def _targets() -> Iterator[Check]:
    from zoexport.tools.describe import list_targets

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
