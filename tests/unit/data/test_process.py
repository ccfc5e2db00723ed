"""Tokenization in a child process: the same result and errors, no heavy imports, and no orphan."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import VOCAB_SIZE, tiny_tokenizer
from zoexport.core.errors import DataError, ZoExportError
from zoexport.data import tokenize_file, tokenize_in_subprocess, write_examples
from zoexport.data.process import tokenize_to_file


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _write(folder: Path, *lines: object) -> Path:
    path = folder / "data.jsonl"
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


_CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "How was it?"},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "And the sea?"},
    {"role": "assistant", "content": "It was great"},
]


def _mixed(folder: Path) -> Path:
    lines: list[object] = [
        {"text": "It was great"},
        {"prompt": "The film. It was", "completion": " great"},
        {"messages": _CHAT},
        {"prompt": "It was", "completion": "b", "choices": ["a", "b"]},
    ]
    path = _write(folder, *lines * 100)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def test_child_gives_the_same(tmp_path: Path, tokenizer_dir: Path) -> None:
    path = _mixed(tmp_path)
    shares: list[float] = []
    here = tokenize_file(path, tokenizer_dir, 32, VOCAB_SIZE)
    child = tokenize_in_subprocess(path, tokenizer_dir, 32, VOCAB_SIZE, progress=shares.append)
    assert child == here
    assert shares[-1] == 1.0
    output = tmp_path / "examples.jsonl"
    assert tokenize_to_file(path, tokenizer_dir, 32, VOCAB_SIZE, output) == (400, 100)
    written = tmp_path / "written.jsonl"
    write_examples(here.examples, written)
    assert output.read_bytes() == written.read_bytes()
    line = json.loads(written.read_text().splitlines()[3])
    assert line == here.examples[3].as_dict()
    assert set(line) == {"candidates", "target"}


def _outcome(function: Any, *arguments: Any) -> dict[str, str]:
    with pytest.raises(ZoExportError) as raised:
        function(*arguments)
    return {"type": type(raised.value).__name__, **raised.value.as_dict()}


@pytest.mark.parametrize(
    "line", ['{"text": "none"}', '{"prompt": "It", "completion": " was", "choices": [" was"]}']
)
def test_a_loss_over_choices_needs_choices_in_every_example(
    tmp_path: Path, tokenizer_dir: Path, line: str
) -> None:
    good = {"prompt": "It", "completion": " was", "choices": [" was", " is"]}
    path = _write(tmp_path, good, good, line)
    output = tmp_path / "examples.jsonl"
    with pytest.raises(DataError) as raised:
        tokenize_to_file(path, tokenizer_dir, 16, VOCAB_SIZE, output, choices=True)
    assert raised.value.where == f"{path}:3"
    assert not output.exists()


@pytest.mark.parametrize(
    "line", ['{"text": 3}', '{"text": "a"}', '{"prompt": "é", "completion": ""}']
)
def test_errors_of_the_child_are_the_same(tmp_path: Path, tokenizer_dir: Path, line: str) -> None:
    arguments = (_write(tmp_path, {"text": "It was"}, line), tokenizer_dir, 16, VOCAB_SIZE)
    expected = _outcome(tokenize_file, *arguments)
    assert _outcome(tokenize_in_subprocess, *arguments) == expected
    output = tmp_path / "out" / "examples.jsonl"
    assert _outcome(tokenize_to_file, *arguments, output) == expected
    assert list(output.parent.iterdir()) == []


def test_child_imports_no_torch_and_parent_no_transformers(
    tmp_path: Path, tokenizer_dir: Path
) -> None:
    path = _write(tmp_path, {"text": "It was great"})
    # A module of this name in the working folder must not hide the real one.
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('shadowed')")
    script = (
        "import sys\nfrom pathlib import Path\nfrom zoexport.data import tokenize_in_subprocess\n"
        f"r = tokenize_in_subprocess(Path({str(path)!r}), Path({str(tokenizer_dir)!r}), 16, 320)\n"
        "print(len(r.examples), [m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": _source_root()}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    if sys.version_info >= (3, 11):
        subprocess_result = subprocess.run(
            [sys.executable, "-P", "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert subprocess_result.stdout == done.stdout
    assert done.stdout.strip() == "1 []", done.stderr


def _source_root() -> str:
    import zoexport.data

    return str(Path(zoexport.data.__file__).parents[2])


@pytest.fixture
def waiting_parent(tmp_path: Path, tokenizer_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose tokenizing child blocks on a named pipe."""
    pipe = tmp_path / "data.jsonl"
    os.mkfifo(pipe)
    script = (
        "from pathlib import Path\nfrom zoexport.data import tokenize_in_subprocess\n"
        f"tokenize_in_subprocess(Path({str(pipe)!r}), Path({str(tokenizer_dir)!r}), 16, 320)\n"
    )
    environment = {**os.environ, "PYTHONPATH": _source_root()}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield parent
    finally:
        parent.kill()
        parent.communicate()


def _children(process: int) -> list[int]:
    listing = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listing.read_text().split()]


def _wait_for(condition: Any) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_child_dies_with_its_parent(
    waiting_parent: subprocess.Popen[str], how: signal.Signals
) -> None:
    assert _wait_for(lambda: _children(waiting_parent.pid))
    (child,) = _children(waiting_parent.pid)
    # Its second thread is the watch, which starts last: from then on it waits for the pipe.
    assert _wait_for(lambda: len(list(Path(f"/proc/{child}/task").iterdir())) > 1)
    waiting_parent.send_signal(how)
    waiting_parent.wait(20)
    assert _wait_for(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))


def _is_zombie(process: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def test_bundle_is_a_tokenizer_folder(tmp_path: Path, tokenizer_dir: Path) -> None:
    # A bundle has an adapter_config.json that names a base model, and no config.json.
    bundle = Path(shutil.copytree(tokenizer_dir, tmp_path / "bundle"))
    config = {"peft_type": "LORA", "base_model_name_or_path": "no-such-org/model"}
    (bundle / "adapter_config.json").write_text(json.dumps(config))
    path = _mixed(tmp_path)
    expected = tokenize_file(path, tokenizer_dir, 32, VOCAB_SIZE)
    assert tokenize_in_subprocess(path, bundle, 32, VOCAB_SIZE) == expected
    assert tokenize_file(path, bundle, 32, VOCAB_SIZE) == expected


def test_child_that_is_killed_gives_one_message(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path, {"text": "It was great"})
    crash = tmp_path / "crash"
    crash.write_text("#!/bin/sh\necho 'something broke' >&2\nexit 9\n")
    crash.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(crash))
    with pytest.raises(DataError, match=r"status 9 \(something broke\)"):
        tokenize_in_subprocess(path, tokenizer_dir, 16, VOCAB_SIZE)
