"""Tokenization in a child process, so that the process that runs steps never loads transformers.

The child is ``python -m zoexport.data``. It writes one JSON object a line to its standard output: ``{"example": ...}``,
``{"progress": share}`` and, last, ``{"shortened": count}`` or ``{"error": {...}}``. It dies with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.children import ended, last_line, python
from zoexport.core.errors import DataError, ModelError, ZoExportError, rebuilt
from zoexport.core.files import atomic_file
from zoexport.core.manifest import copy_files
from zoexport.data.examples import Example, Examples, Progress, stream_file

_PR_SET_PDEATHSIG = 1


def tokenize_in_subprocess(
    path: Path,
    tokenizer_dir: Path,
    seq_len: int,
    vocab_size: int,
    *,
    masked: bool = False,
    progress: Progress | None = None,
) -> Examples:
    """:func:`zoexport.data.tokenize_file` in a child process; arguments, result and errors are the same.

    Raises:
        DataError: also where the child ends without an answer (killed, out of memory).
    """
    with _child(path, tokenizer_dir, seq_len, vocab_size, masked=masked) as child:
        examples: list[Example] = []
        for message in child:
            if "example" in message:
                examples.append(Example.from_dict(message["example"]))
            elif "progress" in message:
                if progress is not None:
                    progress(message["progress"])
            else:
                return Examples(examples, message["shortened"])
    raise AssertionError("the child's messages end with a result or an error")


def tokenize_to_file(
    path: Path,
    tokenizer_dir: Path,
    seq_len: int,
    vocab_size: int,
    output: Path,
    *,
    choices: bool = False,
    masked: bool = False,
    progress: Progress | None = None,
) -> tuple[int, int]:
    """Tokenize in a child process straight into the runner's JSON Lines, holding one example at a time.

    Args:
        choices: whether every example must have choices; the others are :func:`tokenize_in_subprocess`'s.

    Returns:
        The number of examples, and how many of them were shortened.

    Raises:
        ZoExportError: as :func:`tokenize_in_subprocess`; ``output`` is then not written.
    """
    count = 0
    with (
        _child(path, tokenizer_dir, seq_len, vocab_size, choices, masked) as child,
        atomic_file(output) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        for message in child:
            if "example" in message:
                count += 1
                file.write(json.dumps(message["example"], separators=(",", ":")) + "\n")
            elif "progress" in message:
                if progress is not None:
                    progress(message["progress"])
            else:
                return count, message["shortened"]
    raise AssertionError("the child's messages end with a result or an error")


def tokenize_for(
    bundle: Path,
    manifest: Mapping[str, Any],
    data: Path,
    output: Path,
    *,
    loss: str = "full",
    progress: Progress | None = None,
) -> tuple[int, int]:
    """:func:`tokenize_to_file` for a bundle: its tokenizer, length of rows and vocabulary, masks of an encoder.

    transformers reads whatever lies beside a tokenizer, so it gets a folder with the files of the tokenizer alone, as
    the manifest has them.

    Args:
        bundle: its folder. manifest: of it.
        loss: ``choices`` where every example must have them.

    Raises:
        BundleError: a file of the tokenizer is missing or altered. ZoExportError: as :func:`tokenize_to_file`.
    """
    if not manifest["tokenizer"]:
        raise ModelError(
            f"tokenizer of {bundle}",
            found="no tokenizer files",
            expected="a bundle of a model with a tokenizer",
            fix="Compile a model that has a tokenizer.",
        )
    with tempfile.TemporaryDirectory(prefix="zoexport-tokenizer-") as folder:
        copy_files(bundle, manifest, manifest["tokenizer"], Path(folder))
        return tokenize_to_file(
            data,
            Path(folder),
            manifest["settings"]["seq_len"],
            manifest["model"]["vocab_size"],
            output,
            choices=loss == "choices",
            masked="bidirectional" in manifest,
            progress=progress,
        )


@contextlib.contextmanager
def _child(
    path: Path,
    tokenizer_dir: Path,
    seq_len: int,
    vocab_size: int,
    choices: bool = False,
    masked: bool = False,
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the child and yield its messages; it is dead when the block is left, however it is left."""
    numbers = (seq_len, vocab_size, int(choices), int(masked), os.getpid())
    command, environment = python("zoexport.data", path, tokenizer_dir, *numbers)
    # One process of many threads would fight the trainer for the cores.
    environment["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environment},
        )
        with ended(process):
            yield _messages(process, log, path)


def _messages(process: subprocess.Popen[bytes], log: Any, path: Path) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise rebuilt(message["error"])
        yield message
        if "shortened" in message:
            return
    status = process.wait()
    raise DataError(
        f"tokenizing {path}",
        found=f"a tokenizer process that ended with status {status} ({last_line(log)})",
        expected="examples",
        fix="Run again; where memory was short, split the data file.",
    )


def main(arguments: list[str]) -> int:
    """The child's side: data, tokenizer folder, seq_len, vocab_size, choices, masked and the parent's process id."""
    path, tokenizer_dir, seq_len, vocab_size, choices, masked, parent = arguments
    # Ctrl-C reaches the whole group; the parent decides what happens, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(int(parent))
    # transformers imports torch wherever it finds it: 4 s and 300 MB that a tokenizer does not need.
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None
    # Libraries that print must not break the protocol.
    output = sys.stdout
    sys.stdout = sys.stderr

    def send(**message: Any) -> None:
        output.write(json.dumps(message, separators=(",", ":")) + "\n")

    try:
        shortened = 0
        pairs = stream_file(
            Path(path),
            Path(tokenizer_dir),
            int(seq_len),
            int(vocab_size),
            choices=bool(int(choices)),
            masked=bool(int(masked)),
            progress=lambda share: send(progress=share),
        )
        for example, short in pairs:
            shortened += short
            send(example=example.as_dict())
        send(shortened=shortened)
    except ZoExportError as error:
        send(error=error.with_type())
    output.flush()
    return 0


def _die_with_parent(parent: int) -> None:
    """End this process as soon as its parent is gone, also where the parent was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call.
        if os.getppid() != parent:
            os._exit(1)

    def watch() -> None:
        # Nothing is ever written to this pipe: it ends when the last holder of its other end is gone. Read
        # without Python's buffers, whose locks would make the interpreter's exit fail.
        with contextlib.suppress(OSError):
            os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
