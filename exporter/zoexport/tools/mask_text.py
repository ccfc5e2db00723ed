"""The sequences whose gradients are taken: some of a file's, or of the Brown corpus."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError, DataError, ModelError
from zoexport.core.files import sha256
from zoexport.data import corpus
from zoexport.data.examples import IGNORED, Candidate, read_examples
from zoexport.data.text_entry import tokenizer_of
from zoexport.ir.capture import position_limit
from zoexport.tools.mask_choice import MaskConfig

if TYPE_CHECKING:
    from zoexport.models import LoadedModel

CORPUS = "brown"
"""The name of what is read where no file is given."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Tokenized sequences, and where they come from.

    Attributes:
        name: of the file, or :data:`CORPUS`. sha256: of the file.
        loss: ``all tokens`` if all tokens but each first are labels, else ``label tokens``.
        sequences: in the file's order.
    """

    name: str
    sha256: str
    loss: str
    sequences: list[Candidate]


def data_file(path: Path | None, config: MaskConfig) -> Path:
    """``path``, or the training rows of the Brown corpus, fetched at the first call.

    Raises:
        DataError: nothing to fetch it from, or the file holds no examples.
    """
    if path is None:
        return corpus.rows(config.max_length).train
    # A missing file is reported before the model is loaded.
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error) from error
    return path


def read_text(path: Path | None, loaded: LoadedModel, config: MaskConfig) -> Text:
    """Sequences of a data file; more than ``config.sequences`` are drawn from with ``config.seed``.

    Args:
        path: JSON Lines of the shapes that training takes, of choices the right one; or plain text (``.txt``), cut into
            pieces of ``max_length`` tokens. None: see :func:`data_file`.
        loaded: whose tokenizer is used.
        config: the settings.

    Raises:
        DataError: the file cannot be used. ModelError: the model has no tokenizer. ConfigError: it has fewer positions
            than a sequence.
    """
    file = data_file(path, config)
    if loaded.tokenizer is None:
        raise ModelError(
            f"model {loaded.name}",
            found="no tokenizer",
            expected="a model with the tokenizer that reads its text",
            fix="Add its tokenizer's files to the folder, or choose by weights (kind=largest, smallest, random).",
        )
    if file.suffix == ".txt":
        pieces = cut_text(file, loaded, config.max_length)
        sequences = [pieces[place] for place in _drawn(len(pieces), config)]
    else:
        sequences = _examples(file, loaded, config)
    _check_positions(loaded, sequences)
    labelled = all(IGNORED not in sequence.labels[:-1] for sequence in sequences)
    return Text(
        name=CORPUS if path is None else path.name,
        sha256=sha256(file),
        loss="all tokens" if labelled else "label tokens",
        sequences=sequences,
    )


def _examples(file: Path, loaded: LoadedModel, config: MaskConfig) -> list[Candidate]:
    # Blank lines hold no example. Every line is checked, and a long file's are not all kept.
    with file.open("rb") as lines:
        count = sum(1 for line in lines if line.strip(b"\xef\xbb\xbf \t\r\n"))
    drawn = set(_drawn(count, config))
    with tokenizer_of(loaded, config.max_length) as tokenizer:
        examples = read_examples(tokenizer, file, wanted=drawn.__contains__)
    return [example.candidates[example.target] for example in examples]


def cut_text(path: Path, loaded: LoadedModel, max_length: int) -> list[Candidate]:
    """Cut a text into chunks of ``max_length`` tokens, labels for all but the first; drop the rest.

    Args:
        path: a UTF-8 file (a byte order mark is allowed), which is read as a whole.
        loaded: whose tokenizer is used.
        max_length: tokens per chunk, at least 2. A shorter text is one chunk.

    Raises:
        DataError: the file is unreadable or is not UTF-8, or has fewer than two tokens.
    """
    try:
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"data {path}",
            found=f"the byte 0x{error.object[error.start]:02x} that is not UTF-8",
            expected="UTF-8 text",
            fix="Convert the file to UTF-8.",
        ) from error
    tokenizer: Any = loaded.tokenizer
    tokens: list[int] = tokenizer(text)["input_ids"] if text.strip() else []
    if len(tokens) < 2:
        raise DataError(
            f"data {path}",
            found=f"{len(tokens)} tokens" if text.strip() else "no text",
            expected="text of at least two tokens: the first cannot be predicted",
            fix="Give a longer text.",
        )
    if max(tokens) >= loaded.vocab_size:
        raise DataError(
            f"data {path}",
            found=f"the token with id {max(tokens)}",
            expected=f"ids below the model's vocabulary size {loaded.vocab_size}",
            fix="Use the tokenizer that belongs to the model, or remove that token from the text.",
        )
    whole = range(0, len(tokens) - max_length + 1, max_length) or [0]
    return [Candidate.predicting(tokens[start : start + max_length], 0) for start in whole]


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"data {path}",
        found=(error.strerror or str(error)).lower(),
        expected="a readable file of text or examples",
        fix="Check the path.",
    )


def _drawn(count: int, config: MaskConfig) -> list[int]:
    """Places of the sequences that are used, ascending: all, or a random choice."""
    import torch

    generator = torch.Generator().manual_seed(config.seed)
    order = torch.randperm(count, generator=generator)[: config.sequences]
    return sorted(order.tolist())


def _check_positions(loaded: LoadedModel, sequences: list[Candidate]) -> None:
    longest = max(len(sequence.tokens) for sequence in sequences)
    limit = position_limit(loaded.model)
    if limit is not None and longest > limit:
        raise ConfigError(
            "setting 'max_length'",
            found=f"a sequence of {longest} tokens",
            expected=f"at most {limit}, which is how many positions the model has",
            fix=f"Pass --set max_length={limit}.",
        )
