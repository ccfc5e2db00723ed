"""The C++ of the apps under Clang for Apple's systems and musl, and Android's glue: warnings are errors.

Zig's package is a Clang with the headers of other systems. It compiles; nothing is linked, and nothing runs.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.hosts import BUILD, ROOT, needed
from tests.support.zig import unpacked

pytestmark = [pytest.mark.slow, pytest.mark.network]

_RUNTIME = ROOT / "runtime_ops"
#: What an app links: all but ExecuTorch's engine and operators, and code for another processor.
_PARTS = [
    *("rng/*.cpp", "rng/neon/*.cpp", "kernels/*.cpp", "kernels/portable/*.cpp"),
    *("kernels/neon/*.cpp", "session/*.cpp", "session/*/*.cpp", "job/*.cpp", "bindings/c_*.cpp"),
    *("engines/callback_engine.cpp", "engines/team.cpp"),
    *("engines/without_executorch.cpp", "engines/mlx_library.cpp"),
]
#: The instructions that one file alone is compiled for, by the end of its name.
_OWN = {"dotprod": "dotprod", "i8mm": "dotprod+i8mm", "_bf16": "bf16"}
_GLUE = sorted((ROOT / "android_app/session/src/main/cpp").glob("*.cpp"))
_FLAGS = [
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Werror",
]


@pytest.fixture(scope="module")
def zig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("zig"))


def includes() -> list[str]:
    """Where the build found the packages that it compiles with."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    found: dict[str, None] = {}
    for entry in commands:
        words = entry["command"].split()
        found |= {word: None for flag, word in itertools.pairwise(words) if flag == "-isystem"}
    return [word for folder in found if "executorch" not in folder for word in ("-isystem", folder)]


def failures(zig: Path, target: str, sources: list[Path], flags: list[str], output: Path) -> str:
    """What Clang says against the sources."""
    output.mkdir(exist_ok=True)

    def compiled(source: Path) -> str:
        own = [
            f"-mcpu=generic+v8_2a+{more}" for end, more in _OWN.items() if source.stem.endswith(end)
        ]
        line = [zig, "c++", "-target", target, *_FLAGS, *own, *flags]
        line += ["-c", source, "-o", output / f"{source.parent.name}_{source.stem}.o"]
        done = subprocess.run(
            list(map(str, line)), capture_output=True, text=True, cwd=output, check=False
        )
        return "" if done.returncode == 0 else f"{source}: {done.stderr[-2000:]}\n"

    with ThreadPoolExecutor(2) as pool:
        return "".join(pool.map(compiled, sources))


@pytest.mark.parametrize("target", ["aarch64-macos", "aarch64-linux-musl"])
def test_the_core_compiles_without_a_warning(zig: Path, target: str, tmp_path: Path) -> None:
    sources = sorted({path for part in _PARTS for path in _RUNTIME.glob(part)})
    assert len(sources) > 100
    flags = [f"-I{_RUNTIME / 'include'}", f"-I{_RUNTIME}", *includes()]
    flags += ["-DPCRE2_STATIC", "-DPCRE2_CODE_UNIT_WIDTH=8"]
    assert failures(zig, target, sources, flags, tmp_path) == ""


def test_the_glue_compiles_without_a_warning(zig: Path, tmp_path: Path) -> None:
    java = Path(needed("javac", "a JDK (Debian, Ubuntu: apt-get install default-jdk-headless)"))
    home = java.resolve().parents[1] / "include"
    flags = [f"-I{_RUNTIME / 'include'}", f"-isystem{home}", f"-isystem{home / sys.platform}"]
    assert len(_GLUE) > 1
    assert failures(zig, "aarch64-linux-musl", _GLUE, flags, tmp_path) == ""


def test_a_warning_is_an_error(zig: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("int f() { int unused = 3; return 1; }\n")
    assert "unused" in failures(zig, "aarch64-macos", [wrong], [], tmp_path)
