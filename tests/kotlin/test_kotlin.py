"""The Kotlin host, and what the app has below its UI: compiled, run on a JVM, states compared with Python's.

Needs a JDK, Debian's libandroid-json-java, and npm, which brings the Kotlin compiler into ``build/kotlin``.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kotlin.conftest import FOLDER, JSON, QUICK
from tests.support import generation_cases, life_cases, text_cases
from tests.support.compiled import Compiler
from tests.support.hosts import ROOT, check_states, environment_tool, run
from zoexport.api import Bundle
from zoexport.core.native import library_path

pytestmark = [pytest.mark.parity, pytest.mark.network]
HERE = Path(__file__).parent
TRAINING = ROOT / "android_app/app/src/main/kotlin/zoexport/app/training"
SESSION = ROOT / "android_app" / "session" / "src" / "main"


@pytest.fixture(scope="session")
def glue(java: Path) -> Path:
    """The folder of the JNI library."""
    folder = FOLDER / "jni"
    cmake, ninja = environment_tool("cmake"), environment_tool("ninja")
    options = [f"-DZOEXPORT_LIBRARY={library_path()}", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    options += ["-GNinja", "-DCMAKE_BUILD_TYPE=Release"]
    run(cmake, f"-S{SESSION / 'cpp'}", f"-B{folder}", *options)
    run(cmake, "--build", folder)
    assert page_size(folder / "libzoexport_jni.so") == 16384
    return folder


def page_size(library: Path) -> int:
    """The least alignment of what the loader maps, which must be a multiple of the system's pages."""
    content = library.read_bytes()
    first, size, count = (
        *struct.unpack_from("<Q", content, 32),
        *struct.unpack_from("<HH", content, 54),
    )
    loaded = 1
    return min(
        struct.unpack_from("<Q", content, first + size * number + 48)[0]
        for number in range(count)
        if struct.unpack_from("<I", content, first + size * number)[0] == loaded
    )


@pytest.fixture(scope="session")
def text_case(golden_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_cases.make_case(tmp_path_factory.mktemp("texts") / "case", golden_case)


@pytest.fixture(scope="session")
def generation_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generation_cases.make_case(tmp_path_factory.mktemp("generations"))


@pytest.fixture(scope="session")
def gpu_bundle(compiler: Compiler) -> Path:
    """One with the CPU's programs beside the GPU's; the JVM's environment names a device that there is not."""
    return compiler.bundle("llama_tied", "mebp", "android-gpu")


@pytest.fixture(scope="session")
def jvm(java: Path, glue: Path, kotlin: Path) -> Callable[..., list[object]]:
    """Everything that needs no Android, compiled; makes the command that runs a class of it."""
    jar = FOLDER / "tests.jar"
    lib = kotlin / "lib"
    libraries = [lib / "kotlin-test.jar", lib / "kotlinx-coroutines-core-jvm.jar", JSON]
    path = ":".join(map(str, libraries))
    options = ["-Werror", "-jvm-target", "17", "-cp", path, "-d", jar]
    sources = [SESSION / "kotlin", TRAINING, HERE, ROOT / "examples" / "kotlin"]
    run(kotlin / "bin" / "kotlinc", *options, *sources, environment=QUICK)
    path = f"{jar}:{path}:{lib / 'kotlin-stdlib.jar'}"
    # -Xcheck:jni warns of an unchecked exception or a leaked reference and goes on; of a handler of signals beside its
    # own too, unless the JDK's library that chains them comes first.
    chain = java.resolve().parents[1] / "lib" / "libjsig.so"
    assert chain.is_file()
    return lambda name, *arguments: [
        *(
            "env",
            f"LD_PRELOAD={chain}",
            "ZOEXPORT_VULKAN_DEVICE=nonesuch",
            java,
            "-Xcheck:jni",
            f"-Djava.library.path={glue}",
            "-cp",
            path,
            name,
        ),
        *arguments,
    ]


def run_checked(line: list[object]) -> str:
    """What a class printed; neither it nor -Xcheck:jni warned of anything."""
    output = run(*line)
    assert "WARNING" not in output, output
    return output


def test_kotlin(
    jvm: Callable[..., list[object]],
    host_case: Path,
    golden_case: Path,
    text_case: Path,
    generation_case: Path,
    gpu_bundle: Path,
    tmp_path: Path,
) -> None:
    golden = ROOT / "graphs" / "golden"
    life = life_cases.make_case(tmp_path / "life-case")
    killed = subprocess.run(
        list(map(str, jvm("LifeKilled", life, tmp_path / "life"))), capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    cases = (host_case, golden_case, text_case, generation_case, life, gpu_bundle)
    output = run_checked(jvm("MainKt", *cases, tmp_path, golden))
    sys.stdout.write(output)
    assert ", 0 failed" in output
    check_states(host_case, tmp_path)
    life_cases.check(life, tmp_path / "life")
    states = {
        "state-prge": text_case / "prge",
        "state-mebp": text_case / "mebp",
    }
    for name, expected in states.items():
        text_cases.check_state(tmp_path / "model" / name, expected)
    # What was paused has another snapshot; the newest has all but the update that is pending.
    newest = f"snapshot-{text_cases.STEPS - 1}.safetensors"
    for name in ("trajectory.log", newest):
        paused = tmp_path / "model" / "state-paused" / name
        assert paused.read_bytes() == (text_case / "prge" / name).read_bytes()
    _check_adapter(golden_case / "mebp" / "bundle", tmp_path / "model", tmp_path / "peft")


def _check_adapter(bundle: Path, model: Path, folder: Path) -> None:
    """The adapter that Kotlin wrote is the one that Python exports of the same state."""
    state = model / "state-adapter"
    Bundle.open(bundle).export_adapter(folder, state=state, format="peft")
    with zipfile.ZipFile(model / "shared" / "adapter.zip") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    assert found == {path.name: path.read_bytes() for path in folder.iterdir()}
    gguf = folder.with_suffix(".gguf")
    Bundle.open(bundle).export_adapter(gguf, state=state, format="gguf", outtype="f16")
    assert (model / "shared" / "adapter.gguf").read_bytes() == gguf.read_bytes()


def test_kotlin_example(
    jvm: Callable[..., list[object]], compiler: Compiler, tmp_path: Path
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "say ", "completion": "one"}\n{"text": "two three"}\n')
    bundle = compiler.bundle("llama", "mebp", generate=True, max_length=24, batch_size=2)
    state, adapter = tmp_path / "state", tmp_path / "adapter"
    out = run_checked(jvm("Train", bundle, data, state, 5, "say", adapter))
    assert out.count(": loss ") == 5
    assert (adapter / "adapter_model.safetensors").is_file()


@pytest.mark.parametrize("method", ["prge", "mebp"])
def test_a_killed_process_goes_on_as_the_same_run(
    jvm: Callable[..., list[object]],
    golden_case: Path,
    text_case: Path,
    tmp_path: Path,
    method: str,
) -> None:
    """Killed twice without notice while it steps, the state becomes that of an undisturbed ``zoexport train``."""
    state = tmp_path / "state"
    line = jvm(
        "TrainOnce",
        golden_case / method / "bundle",
        text_case / "data.examples.jsonl",
        state,
        text_cases.STEPS,
    )
    reached = 0
    for _ in range(2):
        with subprocess.Popen(list(map(str, line)), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(40):
                step = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().split()
        assert process.returncode == -signal.SIGKILL
        assert reached < step < text_cases.STEPS and str(text_cases.STEPS) not in rest
        reached = step
    run_checked(line)
    text_cases.check_state(state, text_case / method)
