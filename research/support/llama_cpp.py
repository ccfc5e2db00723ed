"""llama.cpp, as the npm package node-llama-cpp brings it built."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from zoexport.core.errors import ConfigError
from zoexport.core.fetch import cache_dir
from zoexport.core.files import atomic_folder

_PACKAGE = Path(__file__).with_name("llama_cpp_package")


def installed(script: Path) -> Path:
    """A copy of a script in a folder that has the package; npm compares the hashes of package-lock.json.

    Raises:
        ConfigError: no npm, or it failed.
    """
    version = json.loads((_PACKAGE / "package.json").read_text())["dependencies"]["node-llama-cpp"]
    folder = cache_dir() / f"node-llama-cpp-{version}"
    if not folder.is_dir():
        npm = program("npm")
        with atomic_folder(folder, replace=True) as output:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(_PACKAGE / name, output)
            # Not `npm ci`: registries lack some of the builds for other systems, which are not wanted here anyway.
            options = ("--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
            done = subprocess.run([npm, "install", *options], cwd=output, check=False)
            if done.returncode != 0:
                raise ConfigError(
                    f"npm package node-llama-cpp {version}",
                    found="an installation that failed",
                    expected="a package registry that npm can reach",
                    fix="Check the network and what npm said.",
                )
    return Path(shutil.copy(script, folder))


def program(name: str) -> str:
    """The path of npm or node.

    Raises:
        ConfigError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise ConfigError(
            f"program {name}",
            found="none on the PATH",
            expected="Node 20 or newer with npm, which runs llama.cpp",
            fix="Install it. On Debian and Ubuntu: apt-get install nodejs npm",
        )
    return found
