"""The wheel: what is in it, what it needs, and that it works far from the checkout and without a compiler."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.gguf_models import write_gguf
from tests.support.hosts import BUILD, ROOT
from tests.support.verbs import verb
from tests.support.wheels import GLIBC, build_wheel, install, old_glibc

pytestmark = [pytest.mark.slow, pytest.mark.network]

MACHINE = platform.machine()
NATIVE = ("libzoexport.so", "zoexport-runner", "libzoexport_mlx.so", "qnn/libQnnHtp.so")
LICENCES = ("licenses/pcre2.md", "licenses/nlohmann-json.txt")
ROWS = [{"prompt": f"The film number {n}", "completion": " was great"} for n in range(6)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    glibc = old_glibc(MACHINE, folder)
    return build_wheel(folder / "first", MACHINE, BUILD, glibc)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("installed") / "environment")


def run(python: Path, folder: Path, *line: object) -> str:
    """What a command of the environment prints, without the checkout and without any other program on the PATH."""
    kept = ("HOME", "LANG", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "ZOEXPORT_SHADERS")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    done = subprocess.run(
        [str(python), *map(str, line)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(python.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        texts = {name: content.read(name) for name in names}
    native = {f"zoexport/_native/{name}" for name in (*NATIVE, *LICENCES)}
    assert {name for name in names if "/_native/" in name} == native
    for kind in ("recipes", "shapes"):
        files = (path for path in (ROOT / "graphs" / kind).rglob("*") if path.is_file())
        assert {name for name in names if name.startswith(f"zoexport/{kind}/")} == {
            f"zoexport/{path.relative_to(ROOT / 'graphs')}" for path in files
        }
    assert "zoexport/schema/manifest.schema.json" in names
    assert "optimum/commands/register/register_zoexport.py" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"zoexport", "optimum"}
    assert [name for name, text in texts.items() if str(ROOT).encode() in text] == []
    modules = {
        str(path.relative_to(ROOT / "exporter")) for path in (ROOT / "exporter").rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == modules


def test_what_it_needs(wheel: Path) -> None:
    line = [sys.executable, "-m", "auditwheel", "show", "--json", "--disable-isa-ext-check", wheel]
    done = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    asked = re.fullmatch(r"manylinux_(\d+)_(\d+)_.*", said["sym_tag"])
    assert asked and (int(asked[1]), int(asked[2])) <= GLIBC
    # Each comes with the package that it is of, and is found beside this one.
    assert all(re.match(r"lib(executorch|mlx)", name) for name in said["external_libs"])


def test_two_builds_are_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Linked again, against libraries of the older glibc that were written again."""
    shutil.rmtree(BUILD / "runtime_ops" / "wheel")
    again = build_wheel(tmp_path / "again", MACHINE, BUILD, old_glibc(MACHINE, tmp_path, anew=True))
    assert again.read_bytes() == wheel.read_bytes()


def test_it_works_far_from_the_checkout(python: Path, tmp_path: Path) -> None:
    """Without the packages of extras too: a GGUF file is loaded, as of the named models."""
    where = "from zoexport.core import native; print(native.library_path(), native.runner_path())"
    for path in run(python, tmp_path, "-c", where).split():
        assert Path(path).is_relative_to(python.parents[1])
    recipes = "from zoexport.core import recipes; print(*recipes.known().values())"
    found = [Path(path) for path in run(python, tmp_path, "-c", recipes).split()]
    assert found and all(path.is_relative_to(python.parents[1]) for path in found)
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model = write_gguf(tmp_path / "model.gguf")
    settings = ("max_length=32", "weights=int4", "lora.r=4", "generate=true", "generate.context=64")
    compiled = ["compile", model, "--target", "host", "-o", tmp_path / "bundle", "--json"]
    compiled += [f"--set={setting}" for setting in settings]
    run(python, tmp_path, "-m", "zoexport", *compiled)
    train = ("train", tmp_path / "bundle", "--data", data, "--steps", 3, "--state")
    prompt = ("--prompt", "The film", "--max-new-tokens", 8)
    results = []
    for name in ("installed", "checkout"):
        state = tmp_path / name
        generate = ("generate", tmp_path / "bundle", "--state", state, *prompt)
        if name == "installed":
            trained, said = (
                json.loads(run(python, tmp_path, "-m", "zoexport", *line, "--json"))
                for line in ((*train, state), generate)
            )
        else:
            trained, said = verb(*train, state), verb(*generate)
        results.append((trained["losses"], said["tokens"]))
    assert len(results[0][0]) == 3 and results[0] == results[1]


def test_the_runner_works_far_from_the_checkout(python: Path, tmp_path: Path) -> None:
    (runner,) = python.parents[1].rglob("zoexport-runner")
    done = subprocess.run([str(runner), "--help"], capture_output=True, text=True, env={"PATH": ""})
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_the_source_archive_has_what_a_build_needs(tmp_path: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        assert not [name for name in content.getnames() if "/_native/" in name or "/build/" in name]
        content.extractall(tmp_path, filter="data")
    (sources,) = (path for path in tmp_path.iterdir() if path.is_dir())
    cache = (BUILD / "CMakeCache.txt").read_text()
    (ninja,) = re.findall(r"^CMAKE_MAKE_PROGRAM:\w+=(.*)$", cache, re.MULTILINE)
    cmake = Path(sys.executable).with_name("cmake")
    configure = [cmake if cmake.exists() else "cmake", "-S", sources, "-B", tmp_path / "b"]
    configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += [f"-DPython3_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release"]
    for name in ("monocypher", "pcre2"):
        (found,) = (BUILD / name).glob(
            "*/src/monocypher-*-src" if name == "monocypher" else "*/src/libpcre2/src"
        )
        configure.append(f"-D{name.upper()}_SOURCE={found}")
    subprocess.run(list(map(str, configure)), check=True, capture_output=True)
    line = [ninja, "-C", str(tmp_path / "b"), "-t", "inputs", "wheel"]
    inputs = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()
    compiled = [Path(name) for name in inputs if name.startswith(str(sources))]
    assert len(compiled) > 100 and all(path.is_file() for path in compiled)
