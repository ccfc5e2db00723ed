"""Wheels and the source archive as ``make wheel`` and ``make sdist`` build them, and environments that have one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.hosts import BUILD, ROOT
from tests.support.zig import unpacked

GLIBC = (2, 28)
MANYLINUX = "manylinux_{}_{}".format(*GLIBC)


def old_glibc(machine: str, scratch: Path, *, anew: bool = False) -> Path:
    """The older glibc's libraries, where ``make wheel`` keeps them; ``anew`` writes them again."""
    folder = BUILD / f"glibc-{machine}"
    if anew or not (folder / ".written").exists():
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
    """A new environment with the wheel, which sees what the wheel asks for and not the checkout; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    places = [str(Path(path)) for path in sys.path if path.endswith("site-packages")]
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # A path file's folder is searched for packages, and its own path files, such as the checkout's, are not read.
    (own / "shared.pth").write_text("\n".join(places))
    # Its libraries are looked for beside the wheel's own files.
    (executorch,) = (found for place in places if (found := Path(place, "executorch")).is_dir())
    (own / "executorch").symlink_to(executorch)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--ignore-installed", str(wheel)], check=True)
    (own / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({sorted(_of_extras())}))\n"
    )
    return python


def _of_extras() -> set[str]:
    """Modules here that nothing brings which the wheel asks for, extras left out."""
    brought: set[str] = set()
    asked = [Requirement("zoexport")]
    while asked:
        one = asked.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if f"{name}[{extra}]" not in brought:
                brought |= {name, f"{name}[{extra}]"}
                lines = map(Requirement, _requires(name))
                asked += [
                    line
                    for line in lines
                    if not line.marker or line.marker.evaluate({"extra": extra})
                ]
    return {
        module
        for module, names in metadata.packages_distributions().items()
        if not brought.intersection(map(canonicalize_name, names))
    }


def _requires(name: str) -> list[str]:
    """What an installed package asks for; nothing of one for another system."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
