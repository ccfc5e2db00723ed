"""Plain text to sequences: a file's tokens, cut into pieces that follow each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.core.errors import DataError
from zoexport.data.examples import Candidate, check_vocabulary
from zoexport.data.records import TextRecord


def cut_text(path: Path, tokenizer: Any, seq_len: int, vocab_size: int) -> list[Candidate]:
    """Pieces of ``seq_len`` tokens, all of which are predicted but the first; what is left over is not used.

    Args:
        path: a UTF-8 file (a byte order mark is allowed), which is read as a whole.
        tokenizer: transformers' tokenizer.
        seq_len: of a piece, at least 2. A shorter text is one piece.
        vocab_size: no token may be at or above it.

    Raises:
        DataError: the file is unreadable or is not UTF-8, or has fewer than two tokens.
    """
    try:
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except OSError as error:
        raise DataError(
            f"data {path}",
            found=(error.strerror or str(error)).lower(),
            expected="a readable text file",
            fix="Check the path.",
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"data {path}",
            found=f"the byte 0x{error.object[error.start]:02x} that is not UTF-8",
            expected="UTF-8 text",
            fix="Convert the file to UTF-8.",
        ) from error
    tokens: list[int] = tokenizer(text)["input_ids"] if text.strip() else []
    if len(tokens) < 2:
        raise DataError(
            f"data {path}",
            found=f"{len(tokens)} tokens" if text.strip() else "no text",
            expected="text of at least two tokens: the first cannot be predicted",
            fix="Give a longer text.",
        )
    check_vocabulary(TextRecord(str(path), text), [([], tokens)], tokenizer, vocab_size)
    whole = range(0, len(tokens) - seq_len + 1, seq_len) or [0]
    return [Candidate.predicting(tokens[start : start + seq_len], 0) for start in whole]
