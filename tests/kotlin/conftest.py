"""The Kotlin compiler, which npm brings into ``build/kotlin``, and the JDK that runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.hosts import BUILD, needed, run

FOLDER = BUILD / "kotlin"
COMPILER = FOLDER / "node_modules" / "kotlin-compiler"
#: ``org.json`` as Android has it.
JSON = Path("/usr/share/java/com.android.json.jar")
QUICK = {"JAVA_OPTS": "-Xmx768M -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For half a minute's work the JVM's second compiler costs more than it gives: 19 s of the processor and not 45."""
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def java() -> Path:
    needed(
        "javac",
        "a JDK, version 17 or newer (Debian, Ubuntu: apt-get install default-jdk-headless)",
    )
    if not JSON.is_file():
        pytest.fail(
            f"{JSON} was not found. Install libandroid-json-java (Debian, Ubuntu).", pytrace=False
        )
    return needed("java", "a JDK, version 17 or newer")


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
