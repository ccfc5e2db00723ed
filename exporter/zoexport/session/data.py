"""Tokenizers, data sets and data files of a session (docs/formats.md)."""

from __future__ import annotations

import array
import ctypes
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from zoexport.core.errors import DataError
from zoexport.core.settings import READING
from zoexport.core.trust import Trusted
from zoexport.session import abi
from zoexport.session.types import Candidate, OnPart, Read, StepEvaluation

_SURROUNDING = 64
"""Tokens that a tokenizer may write around a text, at most."""


class Tokenizer(abi.Handle):
    """An open tokenizer. Use it in a ``with`` statement, from one thread at a time."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle, what="tokenizer", free="zo_tokenizer_close")

    @classmethod
    def open(
        cls,
        bundle: Path,
        *,
        verify: bool = True,
        trust: Trusted = None,
    ) -> Tokenizer:
        """Open the tokenizer of a bundle.

        Args:
            bundle: folder of the bundle.
            verify: whether to check the file's hash; its size is always checked.
            trust: see :meth:`zoexport.session.Session.open`.

        Raises:
            BundleError: the bundle is missing, altered or has no trusted signature, or its
                tokenizer is missing or not supported.
        """
        given = {"verify": verify, "trusted_keys": abi.trusted_keys(trust)}
        return cls(abi.handle("zo_tokenizer_open", abi.path_bytes(bundle), abi.options(given)))

    @classmethod
    def parse(
        cls,
        content: str,
        *,
        max_length: int,
        vocab_size: int,
        text: Mapping[str, Any],
        masked: bool = False,
    ) -> Tokenizer:
        """Create the tokenizer of a model that is not compiled yet.

        Args:
            content: content of its tokenizer.json.
            max_length: tokens of the longest example, at least 2.
            vocab_size: vocabulary size of the model.
            text: value for the member ``text`` of the manifest.
            masked: whether examples are prompts with a mask token.

        Raises:
            BundleError: the tokenizer is not supported. ConfigError: a value is out of range.
        """
        given = {"max_length": max_length, "vocab_size": vocab_size, "masked": masked, "text": text}
        return cls(abi.handle("zo_tokenizer_parse", content.encode(), abi.options(given)))

    def examples(
        self,
        path: Path,
        take: Callable[[dict[str, Any]], None],
        **reads: Any,
    ) -> None:
        """Call ``take`` with the example or problem of each line (keys: see ``zo_examples_read``).

        Args:
            path, reads: see :meth:`Dataset.read`.
            take: called for each line; an exception stops the reading and is raised here.

        Raises:
            ConfigError: see :meth:`Dataset.read`. DataError: the file is unreadable or empty.
            Cancelled: Ctrl-C.
        """
        with abi.stoppable() as callback:
            given = abi.options(reads)
            told = callback(abi.ON_JSON, lambda text: take(json.loads(text)))
            abi.call("zo_examples_read", self.handle, abi.path_bytes(path), given, told, None)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokenize a text; with ``special``, add the special tokens that surround it.

        Raises:
            DataError: the text is too long, or has an unpaired surrogate.
        """
        given = text.encode("utf-8", "surrogatepass")
        tokens = array.array("q", bytes(8 * (len(given) + _SURROUNDING)))
        while True:
            count = ctypes.c_size_t(len(tokens))
            abi.call(
                "zo_tokenizer_encode",
                self.handle,
                given,
                len(given),
                int(special),
                abi.address(tokens),
                ctypes.byref(count),
            )
            if count.value <= len(tokens):
                return tokens[: count.value].tolist()
            tokens = array.array("q", bytes(8 * count.value))

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens; without ``special``, omit special tokens.

        Raises:
            DataError: a number is not a token of the vocabulary.
        """
        given = array.array("q", tokens)
        room = 16 * len(given) + 64
        while True:
            text, size = ctypes.create_string_buffer(room), ctypes.c_size_t(room)
            abi.call(
                *("zo_tokenizer_decode", self.handle, abi.address(given) if given else None),
                *(len(given), int(special), text, ctypes.byref(size)),
            )
            if size.value <= room:
                return text.raw[: size.value].decode()
            room = size.value

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        reply: bool = True,
    ) -> str:
        """Format a conversation with the chat template; encode the result without ``special``.

        Args:
            messages: ``{"role", "content"}`` and other keys that the template reads.
            tools: functions that the assistant can call, as JSON schemas.
            reply: whether to append the start of the assistant's answer.

        Raises:
            BundleError: the bundle has no chat template. DataError: the template refuses the conversation, or does not
                use one of its keys.
        """
        given = {"messages": list(messages), "tools": tools, "reply": reply}
        return str(abi.result("zo_tokenizer_chat", self.handle, abi.options(given))["text"])

    def __del__(self) -> None:
        self.close()


class Dataset(abi.Handle):
    """Tokenized examples, stored by the session's library."""

    def __init__(self) -> None:
        super().__init__(abi.library().zo_dataset_new(), what="dataset", free="zo_dataset_free")

    def add(self, candidates: Sequence[Candidate], target: int = 0) -> None:
        """Append an example.

        Args:
            candidates: completions to compare, or a single one.
            target: index of the right candidate.

        Raises:
            DataError: no label, unequal lengths, invalid token or target; nothing is appended.
        """
        packed = (abi.Candidate * len(candidates))()
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
        """Append the examples of a JSON Lines file (docs/formats.md).

        Raises:
            DataError: the file cannot be used (names the line); nothing is appended.
        """
        abi.call("zo_dataset_load", self.handle, abi.path_bytes(path))

    def read(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        on_part: OnPart | None = None,
        **reads: Any,
    ) -> Read:
        """Append the examples of a data file (docs/formats.md, "Training data"), tokenized for a bundle.

        Args:
            path: JSON Lines of texts, prompts and completions, choices, conversations or pairs of answers.
            tokenizer: tokenizer of the bundle.
            on_part: called with the bytes read so far, about twenty times a second.
            reads: settings, :data:`zoexport.core.settings.READING`. Each example must have what the
                ``loss`` compares: choices, or a pair for ``dpo`` and ``orpo``. ``pack`` packs
                others into rows, each an example here, and splits long texts (docs/formats.md).

        Raises:
            ConfigError: an unknown loss or pack, or examples to pack for a masked language model.
            DataError: the file cannot be used (names the line); nothing is appended.
            Cancelled: Ctrl-C, or ``on_part`` returned True; nothing is appended.
        """
        with abi.stoppable() as callback:
            found = abi.result(
                *("zo_dataset_read", self.handle, tokenizer.handle, abi.path_bytes(path)),
                *(abi.options(reads), callback(abi.ON_PART, on_part), None),
            )
        return Read(**found)

    def write(self, path: Path) -> None:
        """Write all examples atomically to a file for :meth:`load`.

        Raises:
            StateError: the file cannot be written.
        """
        abi.call("zo_dataset_write", self.handle, abi.path_bytes(path))

    def digest(self) -> str:
        """Return the SHA-256 of all examples in order, in hexadecimal; run states store it."""
        text = ctypes.create_string_buffer(65)
        abi.call("zo_dataset_digest", self.handle, text)
        return text.value.decode("ascii")

    def __len__(self) -> int:
        return int(abi.library().zo_dataset_size(self.handle))


def prompts_of(data: Path) -> list[dict[str, Any]]:
    """Return the prompts of a file, with the keys of ``zo_prompts_read``.

    Raises:
        DataError: the file cannot be read, or a line is not a prompt.
    """
    found: list[dict[str, Any]] = []
    with abi.stoppable() as callback:
        take = callback(abi.ON_JSON, lambda text: found.append(json.loads(text)))
        abi.call("zo_prompts_read", abi.path_bytes(data), take, None)
    return found


def reading(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that reading a run's data depends on, for :meth:`Bundle.examples`.

    Args:
        settings: a manifest's settings, overridden by those of the run.
    """
    return {key: settings[key] for key in READING if key in settings}


@dataclasses.dataclass(frozen=True)
class Validation:
    """Validation during training; None keeps the run's value.

    Attributes:
        every: steps between evaluations; for a new run, a tenth of all steps.
        patience: evaluations in a row without a lower loss that end training; new run: unlimited.
        keep: weights that readers of the state get: of the ``best`` evaluation (default of a new run) or the ``last``
            step.
        on_evaluated: called after each evaluation; True stops the run after saving.
    """

    dataset: Dataset
    every: int | None = None
    patience: int | None = None
    keep: Literal["last", "best"] | None = None
    on_evaluated: Callable[[StepEvaluation], bool | None] | None = None
