"""The Swift host: built with its tests, run, its states compared with Python's.

Needs Swift 5.9 or newer: the one on the PATH, or else the one that ``.ci/install-swift`` puts into the cache.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import generation_cases, life_cases, text_cases
from tests.support.compiled import Compiler
from tests.support.hosts import BUILD, ROOT, check_states, content, environment_tool, make_case, run
from tests.support.text_checks import ends_of
from tests.support.trajectories import GOLDEN
from tests.support.transformers_examples import tokenize_file
from zoexport.core.fetch import cache_dir
from zoexport.core.native import library_path
from zoexport.data.examples import write_examples
from zoexport.session import Bundle

pytestmark = pytest.mark.slow
FOLDER = BUILD / "swift"
HERE = Path(__file__).parent
#: Cases that ``zoexport train`` trains too.
TRAINED = ("prge", "mebp")


@pytest.fixture(scope="session")
def swift() -> Callable[..., list[object]]:
    """Makes the command for ``swift`` that sees these folders."""
    if found := shutil.which("swift"):
        return lambda *_folders: [found]
    root = cache_dir() / "swift-trixie"
    if not root.is_dir():
        pytest.fail(
            f"swift was not found on the PATH, nor in {root}. Install Swift 5.9 or newer, or run "
            ".ci/install-swift as root, which fetches Debian's into that folder.",
            pytrace=False,
        )
    if os.geteuid() != 0:
        pytest.fail(
            f"the swift in {root} is entered with chroot, which needs root, and there is none on the "
            "PATH. Install Swift 5.9 or newer, or run this as root.",
            pytrace=False,
        )
    return lambda *folders: [HERE / "chroot.sh", root, *folders, "--", "swift"]


@pytest.fixture(scope="session")
def cases(host_case: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of Python's runs, by name."""
    folder = tmp_path_factory.mktemp("cases")
    made = {
        name: make_case(folder / name, *name.replace("-", " ios-").split())
        for name in ("mebp", "mebp-mlx", "prge-mlx", "mebp-coreml", "prge-coreml", "senszoq-coreml")
    }
    return {"prge": host_case, **made}


@pytest.fixture(scope="session")
def trajectories(golden_case: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the golden trajectories' bundles, with those of the target ios-mlx as ``<method>-mlx``."""
    compiler = Compiler()
    for golden in json.loads(GOLDEN.read_text())["trajectories"]:
        bundle = compiler.bundle(golden["model"], golden["method"], "ios-mlx", **golden["settings"])
        place = golden_case / f"{golden['method']}-mlx"
        place.mkdir()
        shutil.copytree(bundle, place / "bundle")
    return golden_case


def test_swift(
    swift: Callable[..., list[object]], cases: dict[str, Path], trajectories: Path, tmp_path: Path
) -> None:
    import executorch
    import mlx.core

    packages = [Path(next(iter(package.__path__))).resolve() for package in (executorch, mlx)]
    libraries = [library_path().parent.resolve(), *(package / "lib" for package in packages)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    # The folder of a package, as what it needs lies beside it.
    life = life_cases.make_case(tmp_path / "life-case")
    texts = text_cases.make_case(tmp_path / "texts", trajectories)
    bundle = Compiler().bundle("llama", "mebp", generate=True, max_length=24, batch_size=2)
    folders = [
        ROOT,
        libraries[0],
        packages[0].parent,
        *cases.values(),
        trajectories,
        tmp_path,
        bundle,
    ]
    (tmp_path / "generations").mkdir()
    environment = {
        "HOME": FOLDER,  # Swift's own caches
        "ZOEXPORT_CASES": json.dumps({name: str(folder) for name, folder in cases.items()}),
        "ZOEXPORT_TRAJECTORIES": trajectories,
        "ZOEXPORT_TEXTS": texts,
        "ZOEXPORT_LIFE": life,
        "ZOEXPORT_GENERATIONS": generation_cases.make_case(tmp_path / "generations"),
        "ZOEXPORT_GPU_BUNDLE": Compiler().bundle("llama_tied", "mebp", "android-gpu"),
        "ZOEXPORT_VULKAN_DEVICE": "nonesuch",
        "ZOEXPORT_OUTPUT": tmp_path,
        "ZOEXPORT_GOLDEN": ROOT / "graphs" / "golden",
    }
    for name in TRAINED:
        train(cases[name] / "bundle", tmp_path / "cli" / name)
    link = [f"-L{libraries[0]}"]
    for folder in libraries:
        link += ["-rpath", str(folder), "-rpath-link", str(folder)]
    options = [
        *("--package-path", HERE, "--scratch-path", FOLDER / "build"),
        *("-Xswiftc", "-warnings-as-errors"),
        *(part for option in link for part in ("-Xlinker", option)),
    ]
    output = run(*swift(*folders), "test", *options, environment=environment)
    sys.stdout.write(output)
    assert re.search(r"Executed [1-9]\d* tests, with 0 failures", output)
    for name, folder in cases.items():
        if not name.endswith("-coreml"):  # what was recorded can be given once, in order
            check_states(folder, tmp_path / name, "killed")
    check_adapter(trajectories / "mebp" / "bundle", tmp_path / "exported", tmp_path / "peft")
    life_cases.check(life, tmp_path / "life")
    for name in TRAINED:
        check_same(tmp_path / "cli" / name)
    (tmp_path / "data.jsonl").write_text('{"prompt": "say ", "completion": "one"}\n')
    example = tmp_path / "data.jsonl", tmp_path / "example", 5, "say", tmp_path / "example-adapter"
    line = ("run", *options, "Train", bundle, *example)
    assert run(*swift(*folders), *line, environment=environment).count(": loss ") == 5
    assert (tmp_path / "example-adapter" / "adapter_model.safetensors").is_file()


def test_what_needs_apples_frameworks_is_swift(
    swift: Callable[..., list[object]], tmp_path: Path
) -> None:
    """Parsed only: its types are Xcode's to check."""
    sources = sorted((ROOT / "ios_app" / "App" / "Sources").rglob("*.swift"))
    sources += sorted((ROOT / "ios_app" / "ZoSession" / "Sources").rglob("*.swift"))
    assert len(sources) > 20
    run(*swift(ROOT), "-frontend", "-parse", *sources)
    wrong = tmp_path / "Wrong.swift"
    wrong.write_text(sources[0].read_text("utf-8").rstrip().removesuffix("}"), "utf-8")
    line = [*swift(ROOT, tmp_path), "-frontend", "-parse", wrong]
    found = subprocess.run(list(map(str, line)), capture_output=True, text=True, check=False)
    assert found.returncode != 0 and "Wrong.swift" in found.stderr


def train(bundle: Path, folder: Path) -> None:
    """Leave the state of ``zoexport train`` in ``folder``, and the tokens of its examples."""
    folder.mkdir(parents=True)
    data = folder / "data.jsonl"
    records = [{"prompt": f"number {n}", "completion": " yes" * (1 + n % 3)} for n in range(7)]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--data", data, "--state", folder / "state", "--steps", "6"]
    run(environment_tool("zoexport"), "train", bundle, *options)
    max_length = Bundle.open(bundle).manifest["settings"]["max_length"]
    read = tokenize_file(data, bundle, max_length, ends=ends_of(bundle))
    write_examples(read.examples, folder / "examples.jsonl")


def check_same(folder: Path) -> None:
    """Swift's state is that of the command line."""
    states = [folder / "swift", folder / "state"]
    names = [sorted(path.name for path in state.iterdir()) for state in states]
    assert names[0] == names[1]
    for name in names[0]:
        if name != "run.json":
            assert content(states[0] / name) == content(states[1] / name), name
    runs = [json.loads((state / "run.json").read_text()) for state in states]
    for run_ in runs:
        del run_["crc32"]
        run_["data"].pop("conversations", None)  # tokens, which Swift is given, are no text
    assert runs[0] == runs[1]


def check_adapter(bundle: Path, exported: Path, output: Path) -> None:
    """The adapter that the app shares is what zoexport makes of the same state."""
    options = ["--state", exported / "state", "--format", "peft", "-o", output]
    run(environment_tool("zoexport"), "adapter", "export", bundle, *options)
    found, wanted = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (exported / "adapter", output)
    )
    assert found == wanted
