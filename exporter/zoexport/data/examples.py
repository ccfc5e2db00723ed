"""Records to examples: tokens, shifted labels, and what does not fit into the sequence length.

* ``text``: tokenized as the tokenizer is configured; every token but the first is predicted.
* ``prompt`` and ``completion``: tokenized separately (special tokens before the prompt as configured, none behind it
  and none for the completion) and joined; the completion's tokens are predicted.
* ``messages``: the chat template; the last assistant turn's tokens are predicted.
* ``prompt``, ``chosen`` and ``rejected``: as choices of which the first is right; of messages, two conversations.

Texts, completions and both answers of a pair end with an end token, in place of what the tokenizer writes behind them.
Choices, which are compared, do not. The session reads data by the same rules (``runtime_ops/session/examples``).

Nothing precedes the first token of a sequence, so it never is a label. A text longer than the sequence length is cut
at its end. Otherwise tokens are dropped from the prompt's start: of an example with choices as many as its longest
choice needs, so that all choices are scored after the same prompt. A completion that is longer than the sequence
length by itself is cut at its end. For masked language models all of this is otherwise: :mod:`zoexport.data.masked`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import ConfigError, DataError, ModelError, first_line
from zoexport.core.files import atomic_file
from zoexport.data import chat
from zoexport.data.masked import Masked, with_completion
from zoexport.data.records import (
    ChatRecord,
    CompletionRecord,
    Record,
    TextRecord,
    read_records,
)

IGNORED = -100
"""The label of a position at which nothing is predicted."""

_CHUNK = 256
"""Records that are tokenized in one call: fast tokenizers are several times faster on batches."""

Progress = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One sequence; ``labels[t]`` is the token to be predicted at ``tokens[t]``, or -100. Both have the same length.

    Of a causal model it is the token that follows, of a masked one the token that a mask stands for.
    """

    tokens: list[int]
    labels: list[int]

    @classmethod
    def predicting(cls, tokens: list[int], first: int) -> Candidate:
        """A label for each of ``tokens[first:]``, at the position before it; the first token has none."""
        start = max(first, 1)
        labels = [IGNORED] * (start - 1) + tokens[start:] + [IGNORED]
        return cls(tokens, labels[: len(tokens)])


@dataclasses.dataclass(frozen=True)
class Example:
    """Completions to compare (one where nothing is compared) and the index of the right one."""

    candidates: list[Candidate]
    target: int

    def as_dict(self) -> dict[str, Any]:
        """The example as a line of the runner's JSON Lines."""
        candidates = [{"tokens": c.tokens, "labels": c.labels} for c in self.candidates]
        return {"candidates": candidates, "target": self.target}


@dataclasses.dataclass(frozen=True)
class Examples:
    """A data file as a session takes it; ``shortened`` counts the examples that did not fit."""

    examples: list[Example]
    shortened: int


def tokenize_file(
    path: Path,
    tokenizer_dir: Path,
    seq_len: int,
    vocab_size: int,
    *,
    masked: bool = False,
    ends: Sequence[int] = (),
    progress: Progress | None = None,
) -> Examples:
    """Tokenize a JSON Lines file in this process (which then has loaded transformers).

    Args:
        path: the data.
        tokenizer_dir: a folder with the tokenizer's files.
        seq_len: the longest sequence, at least 2.
        vocab_size: the model's; no token may be at or above it.
        masked: whether it is a masked language model, whose examples are prompts with a mask.
        ends: the model's end tokens, the appended one first (``text_entry.end_tokens``); calibration appends none.
        progress: called with the share of the file that is done.

    Raises:
        DataError: a line cannot be used. ModelError: the tokenizer cannot be loaded.
        ConfigError: ``seq_len`` is below 2.
    """
    if seq_len < 2:
        raise ConfigError(
            "setting 'seq_len'",
            found=str(seq_len),
            expected="a sequence length of at least 2: the first token cannot be predicted",
            fix="Choose a larger seq_len.",
        )
    records = read_records(path, progress)
    # A missing or bad file is reported before the seconds that a tokenizer takes to load.
    first = list(itertools.islice(records, 1))
    tokenizer = load_tokenizer(tokenizer_dir)
    records = itertools.chain(first, records)
    pairs = list(
        tokenize_records(records, tokenizer, seq_len, vocab_size, masked=masked, ends=ends)
    )
    return Examples([example for example, _ in pairs], sum(short for _, short in pairs))


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a local folder, through transformers; its own code is never run.

    Raises:
        ModelError: there is none, or transformers cannot read it.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"tokenizer {folder}",
            found="no tokenizer files",
            expected="a folder with tokenizer.json or tokenizer_config.json",
            fix="Compile a model that has a tokenizer, or add its tokenizer files.",
        )
    import transformers

    transformers.logging.set_verbosity_error()
    auto: Any = transformers.AutoTokenizer
    try:
        return auto.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise bare Exception for bad files
        raise ModelError(
            f"tokenizer {folder}",
            found=f"files that transformers cannot read ({first_line(error)})",
            expected="a tokenizer as transformers saves it",
            fix="Download the model's tokenizer again.",
        ) from error


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def tokenize_records(
    records: Iterable[Record],
    tokenizer: Any,
    seq_len: int,
    vocab_size: int,
    *,
    masked: bool = False,
    ends: Sequence[int] = (),
) -> Iterator[tuple[Example, bool]]:
    """Examples in the records' order, each with whether it was shortened.

    Args:
        masked, ends: see :func:`tokenize_file`.
    """
    if masked:
        records = (with_completion(record, tokenizer) for record in records)
    records = iter(records)
    while chunk := list(itertools.islice(records, _CHUNK)):
        encoded = _encode(chunk, tokenizer, masked=masked, ended=bool(ends))
        for record, sequences in zip(chunk, encoded, strict=True):
            check_vocabulary(record, sequences, tokenizer, vocab_size)
            target = record.target if isinstance(record, CompletionRecord) else 0
            if masked:
                prompt = Masked(record.where, sequences[0][0], tokenizer)
                candidates, shortened = _at_masks(prompt, sequences, seq_len)
            else:
                _check_learned(record, sequences)
                if ends and _must_end(record):
                    sequences = [(prompt, _ended(text, ends)) for prompt, text in sequences]
                candidates, shortened = _after_prompts(sequences, seq_len)
            if len({tuple(completion) for _, completion in sequences}) < len(sequences):
                what = "choices"
                if isinstance(record, ChatRecord) or (
                    isinstance(record, CompletionRecord) and record.pair
                ):
                    what = "answers"
                raise DataError(
                    record.where,
                    found=f"{what} that the tokenizer turns into the same tokens",
                    expected=f"{what} that differ in their tokens",
                    fix=f"Choose other words for the {what}.",
                )
            yield Example(candidates, target), shortened


_Split = tuple[list[int], list[int]]
"""The tokens that are only read, and those that are learned."""


def _encode(
    chunk: list[Record], tokenizer: Any, *, masked: bool, ended: bool
) -> Iterator[list[_Split]]:
    """For each record the (prompt, completion) tokens of every candidate; a text is all completion.

    Args:
        ended: whether an end token takes the place of what the tokenizer writes behind a text.
    """

    def encode(texts: list[str], *, special: bool, behind: bool = True) -> Iterator[list[int]]:
        if not texts:
            return iter(())
        dropped = 0 if behind else _written_behind(tokenizer)
        encoded = tokenizer(texts, add_special_tokens=special)["input_ids"]
        return (tokens[: len(tokens) - dropped] for tokens in encoded)

    texts = encode(
        [r.text for r in chunk if isinstance(r, TextRecord)], special=True, behind=not ended
    )
    prompts = encode(
        [r.prompt for r in chunk if isinstance(r, CompletionRecord)], special=True, behind=masked
    )
    # Choices are mostly the same words again and again.
    completions = list(
        dict.fromkeys(c for r in chunk if isinstance(r, CompletionRecord) for c in r.completions)
    )
    tokens_of = dict(zip(completions, encode(completions, special=False), strict=True))
    conversations = [one for r in chunk if isinstance(r, ChatRecord) for one in _conversations(r)]
    chats = iter(chat.tokenize(tokenizer, [chat.render(tokenizer, one) for one in conversations]))
    for record in chunk:
        if isinstance(record, TextRecord):
            yield [([], next(texts))]
        elif isinstance(record, CompletionRecord):
            prompt = next(prompts)
            yield [(prompt, tokens_of[completion]) for completion in record.completions]
        else:
            parts = itertools.islice(chats, len(_conversations(record)))
            yield [(tokens[:start], tokens[start:]) for tokens, start in parts]


def _written_behind(tokenizer: Any) -> int:
    """Return how many tokens the tokenizer writes behind a text."""
    bare, whole = (
        tokenizer(["a"], add_special_tokens=special)["input_ids"][0] for special in (False, True)
    )
    added = len(whole) - len(bare)
    before = next(n for n in range(added + 1) if whole[n : n + len(bare)] == bare)
    return added - before


def _must_end(record: Record) -> bool:
    """Return whether the example's end is learned: choices are compared without it, templates write their own."""
    if isinstance(record, CompletionRecord):
        return record.pair or len(record.completions) == 1
    return isinstance(record, TextRecord)


def _ended(tokens: list[int], ends: Sequence[int]) -> list[int]:
    return tokens if tokens[-1] in ends else [*tokens, ends[0]]


def _conversations(record: ChatRecord) -> list[ChatRecord]:
    """The one that is learned, and of a pair the rejected one."""
    if record.rejected is None:
        return [record]
    return [record, dataclasses.replace(record, messages=record.rejected)]


def check_vocabulary(
    record: Record, sequences: list[_Split], tokenizer: Any, vocab_size: int
) -> None:
    """Refuse tokens that the model does not have.

    Raises:
        DataError: a token is at or above ``vocab_size``.
    """
    for prompt, completion in sequences:
        largest = max(itertools.chain(prompt, completion), default=0)
        if largest >= vocab_size:
            raise DataError(
                record.where,
                found=f"the token {tokenizer.convert_ids_to_tokens(largest)!r} with id {largest}",
                expected=f"ids below the model's vocabulary size {vocab_size}",
                fix="Use the tokenizer that belongs to the model, or remove that token from the text.",
            )


def _at_masks(
    prompt: Masked, sequences: list[_Split], seq_len: int
) -> tuple[list[Candidate], bool]:
    """Candidates whose masks stand for completions, and whether the prompt was shortened."""
    shortened = prompt.shortened(seq_len - max(len(completion) for _, completion in sequences))
    filled = (prompt.filled(completion, IGNORED) for _, completion in sequences)
    return [Candidate(tokens, labels) for tokens, labels in filled], shortened


def _check_learned(record: Record, sequences: list[_Split]) -> None:
    """Refuse examples without a token to learn; an end token alone is none.

    Raises:
        DataError: nothing of the text can be predicted.
    """
    for prompt, completion in sequences:
        if not completion or len(prompt) + len(completion) < 2:
            raise DataError(
                record.where,
                found=f"{len(prompt) + len(completion)} tokens, none of which can be predicted",
                expected="at least one token to be learned that another token precedes",
                fix="Give a longer text, or a prompt.",
            )


def _after_prompts(sequences: list[_Split], seq_len: int) -> tuple[list[Candidate], bool]:
    """Candidates of prompts and the completions that follow them, and whether tokens were dropped."""
    longest = max(len(completion) for _, completion in sequences)
    room = max(seq_len - longest, 0)
    shortened = False
    candidates = []
    for prompt, completion in sequences:
        kept = prompt[max(len(prompt) - room, 0) :]
        tokens = (kept + completion)[:seq_len]
        shortened |= len(tokens) < len(prompt) + len(completion)
        candidates.append(Candidate.predicting(tokens, len(kept)))
    return candidates, shortened


def write_examples(examples: Iterable[Example], path: Path) -> None:
    """Write the runner's JSON Lines (docs/session.md); the file is whole or absent.

    Raises:
        ConfigError: the place cannot be written.
    """
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for example in examples:
            file.write(json.dumps(example.as_dict(), separators=(",", ":")) + "\n")
