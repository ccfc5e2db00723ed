"""The examples of a session."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoexport.core.errors import DataError
from zoexport.session import abi, structs
from zoexport.session.handles import Handle
from zoexport.session.support import position, stoppable
from zoexport.session.types import LOSSES, SWITCHES, Candidate, OnPart, Read

if TYPE_CHECKING:
    from zoexport.session.tokenizer import Tokenizer


class Dataset(Handle):
    """Tokenized examples, held by the session's library."""

    def __init__(self) -> None:
        super().__init__(abi.library().zo_dataset_new(), what="dataset", free="zo_dataset_free")

    def add(self, candidates: Sequence[Candidate], target: int = 0) -> None:
        """Append an example.

        Args:
            candidates: the completions to compare; one where there are no choices.
            target: the index of the right one.

        Raises:
            DataError: no label, unequal lengths, an impossible token or target; nothing is appended.
        """
        packed = (structs.Candidate * len(candidates))()
        kept = []  # the arrays must outlive the call
        for entry, (tokens, labels) in zip(packed, candidates, strict=True):
            if len(tokens) != len(labels):
                raise DataError(
                    f"example {len(self)}",
                    found=f"{len(tokens)} tokens and {len(labels)} labels",
                    expected="as many labels as tokens",
                    fix="Give -100 where nothing is to be predicted.",
                )
            numbers = array.array("q", tokens), array.array("q", labels)
            kept.append(numbers)
            entry.tokens, entry.labels = (abi.address(part) for part in numbers)
            entry.length = len(tokens)
        if target < 0:
            target = len(candidates)  # refused by the library with the same message as any other
        abi.call("zo_dataset_add", self.handle, packed, len(candidates), target)

    def load(self, path: Path) -> None:
        """Append the examples of a JSON Lines file (docs/session.md).

        Raises:
            DataError: the file, with the line at fault; nothing is appended.
        """
        abi.call("zo_dataset_load", self.handle, abi.path_bytes(path))

    def read(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        loss: str = "full",
        pack: str = "off",
        on_part: OnPart | None = None,
    ) -> Read:
        """Append the examples of a data file as people write them (docs/cli.md, "Data"), tokenized for a bundle.

        Args:
            path: JSON Lines of texts, prompts and completions, choices, conversations or pairs of answers.
            tokenizer: the bundle's.
            loss: of the run; every example must have what it compares: choices, or of ``dpo`` and ``orpo`` a pair.
            pack: of the run; "on": what is compared with nothing fills rows, each an example here, and long texts are
                divided (docs/packing.md).
            on_part: told how many of the file's bytes are done, some twenty times a second.

        Raises:
            ConfigError: another loss or pack, or a bundle of a masked language model and examples to pack.
            DataError: the file, with the line at fault; nothing is appended.
            Cancelled: Ctrl-C, or ``on_part`` returned True; likewise.
        """
        report = structs.ReadReport(struct_size=ctypes.sizeof(structs.ReadReport))
        options = structs.ReadOptions(
            ctypes.sizeof(structs.ReadOptions),
            position("setting 'loss'", loss, LOSSES),
            position("setting 'pack'", pack, SWITCHES),
        )
        with stoppable() as callback:
            abi.call(
                *("zo_dataset_read_with", self.handle, tokenizer.handle, abi.path_bytes(path)),
                *(ctypes.byref(options), callback(structs.ON_PART, on_part), None),
                ctypes.byref(report),
            )
        note = report.note.decode("utf-8")
        return Read(report.examples, report.shortened, report.longest, note)

    def write(self, path: Path) -> None:
        """Write all examples as a file that :meth:`load` takes, whole or not at all.

        Raises:
            StateError: it cannot be written.
        """
        abi.call("zo_dataset_write", self.handle, abi.path_bytes(path))

    def digest(self) -> str:
        """SHA-256 of all examples in their order, in hexadecimal; what the state of a run keeps of its data."""
        text = ctypes.create_string_buffer(65)
        abi.call("zo_dataset_digest", self.handle, text)
        return text.value.decode("ascii")

    def __len__(self) -> int:
        return int(abi.library().zo_dataset_size(self.handle))
