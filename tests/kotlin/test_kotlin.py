"""The Kotlin host: compiled with its tests, run on a JVM, its states compared with Python's.

Needs a JDK and npm, which brings the Kotlin compiler into ``build/kotlin``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.hosts import BUILD, ROOT, check_states, environment_tool, needed, run
from zoexport.core.native import library_path

pytestmark = pytest.mark.slow
FOLDER = BUILD / "kotlin"
COMPILER = FOLDER / "node_modules" / "kotlin-compiler"
HERE = Path(__file__).parent
SESSION = ROOT / "android_app" / "session" / "src" / "main"


@pytest.fixture(scope="session")
def java() -> Path:
    needed(
        "javac",
        "a JDK, version 17 or newer (Debian, Ubuntu: apt-get install default-jdk-headless)",
    )
    return needed("java", "a JDK, version 17 or newer")


@pytest.fixture(scope="session")
def glue(java: Path) -> Path:
    """The folder of the JNI library."""
    folder = FOLDER / "jni"
    cmake, ninja = environment_tool("cmake"), environment_tool("ninja")
    options = [f"-DZOEXPORT_LIBRARY={library_path()}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    options += ["-GNinja", "-DCMAKE_BUILD_TYPE=Release"]
    run(cmake, f"-S{SESSION / 'cpp'}", f"-B{folder}", *options)
    run(cmake, "--build", folder)
    return folder


@pytest.fixture(scope="session")
def kotlin(java: Path) -> Path:
    """The compiler of package-lock.json; npm compares its hash."""
    lock = FOLDER / "package-lock.json"
    wanted = HERE / "package-lock.json"
    if not (COMPILER / "bin").is_dir() or lock.read_bytes() != wanted.read_bytes():
        npm = needed("npm", "npm (Debian, Ubuntu: apt-get install npm), for the Kotlin compiler")
        FOLDER.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "package.json", FOLDER)
        shutil.copy(wanted, lock)
        run(npm, "ci", "--no-audit", "--no-fund", cwd=FOLDER)
    return COMPILER


def test_kotlin(java: Path, glue: Path, kotlin: Path, host_case: Path, tmp_path: Path) -> None:
    jar = FOLDER / "tests.jar"
    library = kotlin / "lib" / "kotlin-test.jar"
    sources = [SESSION / "kotlin", HERE]
    run(
        kotlin / "bin" / "kotlinc",
        "-Werror",
        "-jvm-target",
        "17",
        "-cp",
        library,
        "-d",
        jar,
        *sources,
    )
    path = f"{jar}:{library}:{kotlin / 'lib' / 'kotlin-stdlib.jar'}"
    golden = ROOT / "graphs" / "golden" / "rng.json"
    output = run(
        java,
        "-Xcheck:jni",
        f"-Djava.library.path={glue}",
        "-cp",
        path,
        "SmokeTestKt",
        host_case,
        tmp_path,
        golden,
    )
    sys.stdout.write(output)
    # -Xcheck:jni warns of an unchecked exception or a leaked reference and goes on.
    assert "WARNING" not in output and ", 0 failed" in output
    check_states(host_case, tmp_path)
