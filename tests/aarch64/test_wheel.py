"""The wheel for 64-bit ARM, of the objects of ``make test-aarch64``: what is in it, what it needs, that it trains."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.aarch64.test_qemu import QEMU, STEPS, Machine, Runs
from tests.support.hosts import BUILD
from tests.support.wheels import GLIBC, build_wheel, old_glibc
from zoexport.core.native import runner_path

pytestmark = [pytest.mark.aarch64, pytest.mark.network]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files of its native part, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    glibc = old_glibc("aarch64", folder)
    wheel = build_wheel(folder / "built", "aarch64", BUILD / "aarch64" / "native", glibc)
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder / "content")
    return sorted(
        path for path in (folder / "content/zoexport/_native").iterdir() if path.is_file()
    )


def readelf(option: str, path: Path) -> str:
    return subprocess.run(
        ["readelf", option, "--wide", path], check=True, capture_output=True, text=True
    ).stdout


def test_its_files_are_for_that_machine(native: list[Path]) -> None:
    assert [path.name for path in native] == ["libzoexport.so", "zoexport-runner"]
    for path in native:
        assert re.search(r"Machine:\s+AArch64", readelf("--file-header", path))


def test_what_they_need(native: list[Path]) -> None:
    system = r"lib(c|m|pthread|dl)\.so\.\d|libgcc_s\.so\.1|ld-linux-aarch64\.so\.1"
    for path in native:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", path))
        own = [name for name in needed if not re.fullmatch(system, name)]
        assert own and all(re.match(r"lib(executorch|zoexport)", name) for name in own)
        versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("--version-info", path))
        assert versions and max((int(a), int(b)) for a, b in versions) <= GLIBC
        assert re.search(
            r"RUNPATH.*\[\$ORIGIN:\$ORIGIN/\.\./\.\./executorch/lib\]", readelf("--dynamic", path)
        )


def test_its_runner_trains(native: list[Path], tmp_path: Path) -> None:
    """Under qemu, laid out as in site-packages: ExecuTorch's libraries are found beside the package."""
    (runner,) = (path for path in native if path.name == "zoexport-runner")
    runner.chmod(0o755)
    beside = runner.parents[2] / "executorch"
    beside.symlink_to(BUILD / "aarch64" / "package" / "executorch")
    runs = Runs(tmp_path, (Machine("arm", runner, QEMU), Machine("here", runner_path())))
    here, there = (runs.train("fp32", name)["losses"] for name in ("here", "arm"))
    assert len(set(here)) == STEPS and there == pytest.approx(here, rel=1e-4)
