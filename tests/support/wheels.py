"""Wheels and the source archive as ``make wheel`` and ``make sdist`` build them, and environments that have one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.hosts import BUILD, ROOT
from tests.support.zig import unpacked

GLIBC = (2, 28)
MANYLINUX = "manylinux_{}_{}".format(*GLIBC)


def old_glibc(machine: str, scratch: Path) -> Path:
    """The older glibc's libraries, where ``make wheel`` keeps them."""
    folder = BUILD / f"glibc-{machine}"
    if not (folder / ".written").exists():
        script = [sys.executable, str(ROOT / "cmake" / "old_glibc.py"), str(folder), machine]
        subprocess.run(
            [*script, ".".join(map(str, GLIBC))],
            check=True,
            env={**os.environ, "ZIG": str(unpacked(scratch))},
        )
        (folder / ".written").touch()
    return folder


def build_wheel(output: Path, machine: str, build: Path, glibc: Path) -> Path:
    """A wheel of the objects in ``build``, as ``make wheel`` makes it."""
    settings = {
        "build-dir": build,
        "wheel.tags": f"py3-none-{MANYLINUX}_{machine}",
        "cmake.define.ZOEXPORT_GLIBC": glibc,
    }
    line = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--no-build-isolation"]
    line += [f"--config-settings={key}={value}" for key, value in settings.items()]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        [*line, "--wheel-dir", str(output), "--disable-pip-version-check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PATH": os.pathsep.join(programs)},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = output.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel, which sees the packages of this one but not the checkout; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    places = [str(Path(path)) for path in sys.path if path.endswith("site-packages")]
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # A path file's folder is searched for packages, and its own path files, such as the checkout's, are not read.
    (own / "shared.pth").write_text("\n".join(places))
    for package in (
        "executorch",
        "mlx",
    ):  # whose libraries the wheel's files look for beside their own package
        (own / package).symlink_to(
            next(Path(place, package) for place in places if Path(place, package).is_dir())
        )
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--ignore-installed", str(wheel)], check=True)
    return python
