"""A data file as the session reads it for a bundle, and as a file of tokens for those who run elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoexport.core.types import Notice, Progress
from zoexport.session import abi, structs
from zoexport.session.dataset import Dataset
from zoexport.session.support import stoppable
from zoexport.session.tokenizer import Tokenizer


def prompts_of(data: Path) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """The texts, or the roles and contents of the messages, of a file of prompts.

    Raises:
        DataError: it cannot be read, or a line is no prompt.
    """
    found = []

    def take(pointer: Any) -> None:
        prompt = pointer.contents
        text = ctypes.string_at(prompt.text, prompt.text_size).decode()
        messages = prompt.messages[: prompt.message_count]
        found.append((text, tuple((one.role.decode(), one.content.decode()) for one in messages)))

    with stoppable() as callback:
        abi.call("zo_prompts_read", abi.path_bytes(data), callback(structs.ON_PROMPT, take), None)
    return found


def reading(settings: Mapping[str, Any]) -> dict[str, str]:
    """What of a run's settings says how its data is read, as :func:`read_examples` takes it.

    Args:
        settings: of a manifest, with what was chosen for the run.
    """
    return {"loss": settings["loss"], "pack": settings.get("pack", "off")}


@contextlib.contextmanager
def read_examples(
    bundle: Path,
    data: Path,
    *,
    loss: str = "full",
    pack: str = "off",
    progress: Progress | None = None,
) -> Iterator[tuple[Dataset, dict[str, int]]]:
    """The examples of a data file, tokenized by the bundle's tokenizer, which is closed again.

    Args:
        bundle: its folder. data: JSON Lines (docs/cli.md, "Data").
        loss, pack: of the run, as :meth:`Dataset.read` takes them.
        progress: called with the share of the file that is read, and with a notice if examples were shortened or end
            without an end token.

    Returns:
        The examples; and ``examples`` and ``shortened``, how many there are (rows, where they are packed) and did not
        fit the bundle's rows.

    Raises:
        BundleError: it has no tokenizer, an altered one, or one of a kind that the session does not know.
        DataError: the file, with the line at fault.
        Cancelled: Ctrl-C.
    """
    report = progress or (lambda phase, done: None)
    report("tokenizing", None)
    with Dataset() as dataset:
        with Tokenizer.open(bundle) as tokenizer:
            found = dataset.read(
                data,
                tokenizer,
                loss=loss,
                pack=pack,
                on_part=lambda done, total: report("tokenizing", done / total),
            )
        if found.note:
            report(Notice(found.note), None)
        yield dataset, {"examples": len(dataset), "shortened": found.shortened}


def write_tokens(
    bundle: Path,
    data: Path,
    output: Path,
    *,
    loss: str = "full",
    pack: str = "off",
    progress: Progress | None = None,
) -> dict[str, int]:
    """:func:`read_examples` into a file of tokens, which :meth:`Dataset.load` and the runner take.

    Raises:
        ZoExportError: as there; ``output`` is then not written.
    """
    with read_examples(bundle, data, loss=loss, pack=pack, progress=progress) as (dataset, counts):
        dataset.write(output)
        return counts
