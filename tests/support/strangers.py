"""What a stranger may hand a host: altered bundles whose hashes and id are right, opened in a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import bundles
from tests.support.bundles import LinearModel
from tests.support.sessions import make_dataset
from zoexport.core import manifest as manifests
from zoexport.core.errors import ZoExportError
from zoexport.core.files import sha256
from zoexport.session import Dataset, Session

Manifest = dict[str, Any]


def rewrite(bundle: Path, change: Callable[[Manifest], Manifest] = lambda content: content) -> None:
    """Alter a manifest, and give it the sizes, the hashes and the id of what is there."""
    content = json.loads((bundle / "manifest.json").read_text("utf-8"))
    for name in content["files"]:
        path = bundle / name
        content["files"][name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    content = change(content)
    content["bundle_id"] = manifests.bundle_id(content)
    (bundle / "manifest.json").write_text(json.dumps(content), "utf-8")


def in_child(function: Callable[..., Any], *arguments: object) -> str:
    """What a function of this file returns in a process of its own. A process that a signal ends fails the test."""
    call = f"tests.support.strangers.{function.__name__}(*sys.argv[1:])"
    script = f"import sys\nimport tests.support.strangers\nsys.stdout.write({call})"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-200:], done.stderr[-2000:])
    return done.stdout


def load_line(path: str) -> str:
    """The message of a data set, or nothing."""
    try:
        Dataset().load(Path(path))
    except ZoExportError as error:
        return str(error)
    return ""


def open_bundle(path: str) -> str:
    """The message of a session whose programs Python runs, or nothing."""
    try:
        Session.open(Path(path), engine=LinearModel()).close()
    except ZoExportError as error:
        return str(error)
    return ""


def attach_state(bundle: str, state: str) -> str:
    """The message of a state, or nothing."""
    with Session.open(Path(bundle), engine=LinearModel()) as session:
        try:
            session.attach(Path(state))
        except ZoExportError as error:
            return str(error)
    return ""


def step(path: str) -> str:
    """The message of a step and an evaluation with ExecuTorch, or nothing."""
    with make_dataset(bundles.text_examples()) as dataset:
        try:
            with Session.open(Path(path), threads=1, cache="") as session:
                session.step(dataset, [0, 1])
                session.evaluate(dataset)
        except ZoExportError as error:
            return str(error)
    return ""


def steps(path: str, seed: str, count: str) -> str:
    """:func:`step` with altered programs one after another; the number of each is written to standard error before."""
    bundle = Path(path)
    content = (bundle / "model.bin").read_bytes()
    found = []
    for number in range(int(count)):
        (bundle / "model.bin").write_bytes(altered(content, int(seed), number))
        rewrite(bundle)
        sys.stderr.write(f"altered(content, {seed}, {number})\n")
        sys.stderr.flush()
        found.append(step(path))
    return json.dumps(found)


def altered(content: bytes, seed: int, number: int) -> bytes:
    """A program file with one to four of its words replaced."""
    generator = random.Random(1000 * seed + number)
    changed = bytearray(content)
    for _ in range(generator.randint(1, 4)):
        at = 4 * generator.randrange(len(content) // 4)
        words = [0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 0, 1, generator.getrandbits(32)]
        changed[at : at + 4] = generator.choice(words).to_bytes(4, "little")
    return bytes(changed)
