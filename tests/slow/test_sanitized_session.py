"""The session from Python under AddressSanitizer and UndefinedBehaviorSanitizer, over bundles that ExecuTorch runs.

Needs ``build/address``, which ``make test-sanitized-session`` builds and this test too where it is not there. Our
library is instrumented, with all that it keeps and lends; ExecuTorch's libraries are not: what they do wrong within
their own memory is seen where it meets the heap's red zones through malloc and memcpy only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.points import write_examples
from tests.support import sanitized
from tests.support.compiled import Compiler
from tests.support.hosts import ROOT, run

pytestmark = pytest.mark.slow
STATES = ("resumed", "left", "right")


@pytest.fixture(scope="module")
def instrumented() -> dict[str, str]:
    """The environment of a process that loads the instrumented library."""
    folder = sanitized.build("address", "zoexport")
    return {
        **os.environ,
        "ZOEXPORT_NATIVE_DIR": str(folder / "runtime_ops"),
        "LD_PRELOAD": runtime_of(folder / "runtime_ops" / "libzoexport.so"),
        # Python keeps much until it ends. Its own buffers are watched where they come from malloc.
        "ASAN_OPTIONS": "detect_leaks=0:handle_sigbus=0",
        "PYTHONMALLOC": "malloc",
    }


def runtime_of(library: Path) -> str:
    """What a library is linked to that must be loaded before all others.

    The sanitizer's library looks for the function that throws exceptions when it is loaded.
    """
    linked = {line.split()[0]: line.split() for line in run("ldd", library).splitlines()}
    names = [name for name in linked if name.startswith(("libasan.", "libstdc++."))]
    assert len(names) == 2, linked
    return " ".join(linked[name][2] for name in sorted(names))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples") / "examples.jsonl")


def drive(bundle: Path, examples: Path, folder: Path, environment: dict[str, str]) -> str:
    folder.mkdir()
    line = [sys.executable, "-m", "tests.slow.sanitized_session", bundle, examples, folder]
    done = subprocess.run(
        list(map(str, line)),
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("prge", {"num_queries": 2}),
        ("mezo", {"num_queries": 2}),
        ("mebp", {}),
        ("senszoq", {"num_queries": 2}),
        ("quzo", {"num_queries": 2}),
        ("spzo", {}),
    ],
)
def test_no_finding_and_the_same_bytes(
    instrumented: dict[str, str],
    compiler: Compiler,
    examples: Path,
    tmp_path: Path,
    method: str,
    settings: dict[str, Any],
) -> None:
    bundle = compiler.bundle("llama_tied", method, weights="int4", **settings)
    output = drive(bundle, examples, tmp_path / "watched", instrumented)
    assert "Sanitizer" not in output and "runtime error" not in output
    drive(bundle, examples, tmp_path / "plain", dict(os.environ))
    logs = {
        (folder / name / "trajectory.log").read_bytes()
        for folder in (tmp_path / "watched", tmp_path / "plain")
        for name in ("whole", *STATES)
    }
    assert len(logs) == 1


def test_a_finding_ends_the_process(instrumented: dict[str, str], tmp_path: Path) -> None:
    """Else the test above could not fail: the library is given a buffer that is too short."""
    code = (
        "import ctypes, zoexport.session.abi as abi\n"
        "abi.library().zo_rng_normals(1, 1, 0, 0, 0, 64, ctypes.create_string_buffer(32))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=instrumented, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
