"""The Makefile configures CMake again when tools that CMake searches for appear or disappear."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Checkout:
    """A folder with the sources of this checkout and its own build folder.

    Its tools are Vulkan's compiler and header in ``tools``; those of the system are hidden from make and from CMake.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        for name in ("Makefile", "CMakeLists.txt", "cmake", "exporter", "runtime_ops", "tests"):
            (self.folder / name).symlink_to(ROOT / name)
        for name in ("monocypher", "pcre2"):  # fetched already, unless make setup did not run here
            if (ROOT / "build" / name).is_dir():
                (self.folder / "build").mkdir(exist_ok=True)
                (self.folder / "build" / name).symlink_to(ROOT / "build" / name)
        self.tools = folder / "tools"
        self.commands = folder / "commands"
        self.commands.mkdir()
        for name in ("sh", "cat", "mkdir", "find", "env", "nproc", "uname", "touch", "as", "ld"):
            (self.commands / name).symlink_to(shutil.which(name) or name)
        hidden = folder / "hidden.cmake"
        hidden.write_text('set(CMAKE_SYSTEM_IGNORE_PATH "/usr/bin;/bin;/usr/include")\n', "utf-8")
        self.environment = {
            "PATH": str(self.commands),
            "CMAKE_PREFIX_PATH": str(self.tools),
            "CC": shutil.which("gcc") or "cc",
            "CXX": shutil.which("g++") or "c++",
            "CMAKE_TOOLCHAIN_FILE": str(hidden),
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        }

    def make(self, *arguments: str) -> str:
        """What ``make`` prints for the configuration, with the packages of this Python."""
        line = [shutil.which("make") or "make", "-o", ".venv/.packages", "build/.configured"]
        line += [f"BIN={Path(sys.prefix) / 'bin'}", *arguments]
        done = subprocess.run(
            line, cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install_tools(self) -> None:
        compiler = self.tools / "bin" / "glslangValidator"
        compiler.parent.mkdir(parents=True)
        compiler.write_text("#!/bin/sh\n", "utf-8")
        compiler.chmod(0o755)
        header = self.tools / "include" / "vulkan" / "vulkan.h"
        header.parent.mkdir(parents=True)
        header.touch()

    def remove_tools(self) -> None:
        shutil.rmtree(self.tools)

    def has_engine(self) -> bool:
        """Whether the library that would be built has the Vulkan engine."""
        rules = (self.folder / "build" / "build.ninja").read_text("utf-8")
        assert ("vulkan_engine.cpp" in rules) != ("without_vulkan.cpp" in rules)
        return "vulkan_engine.cpp" in rules


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_make_configures_again_when_tools_come_and_go(checkout: Checkout) -> None:
    checkout.make()
    assert not checkout.has_engine()
    assert "up to date" in checkout.make()

    checkout.install_tools()
    assert "-S . -B build" in checkout.make("--dry-run")
    checkout.make()
    assert checkout.has_engine()
    assert "up to date" in checkout.make()

    checkout.remove_tools()
    checkout.make()
    assert not checkout.has_engine()
