"""``eval --generate``: greedy completions scored against references with SQuAD's metrics.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016): texts are
compared in lower case without punctuation, a/an/the and repeated blanks. ``exact_match`` is
the share of answers equal to a reference, ``f1`` the mean F1 of words; the best reference counts.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import string
from collections.abc import Sequence
from pathlib import Path

from zoexport.core.errors import ConfigError, DataError, ZoExportError
from zoexport.core.progress import Progress
from zoexport.run.generate import Generator, Prompt, prompt_of
from zoexport.session.data import prompts_of

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SHAPES = '{"prompt", "completion"} or {"messages"}'


@dataclasses.dataclass(frozen=True)
class Question:
    """A prompt and its reference answers, at least one; ``where`` is its line in the data."""

    where: str
    prompt: Prompt
    references: tuple[str, ...]


def normalized(answer: str) -> str:
    """Normalize a text for comparison."""
    lowered = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lowered).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer equals a reference, else 0."""
    return float(any(normalized(answer) == normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Return the F1 (harmonic mean of precision and recall) of words, with the best reference."""
    return max(_f1(normalized(answer).split(), normalized(one).split()) for one in references)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    same = sum((collections.Counter(answer) & collections.Counter(reference)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(answer), same / len(reference)
    return 2 * precision * recall / (precision + recall)


def read_questions(data: Path) -> list[Question]:
    """Read prompts with their references: ``answers``, the completion or the last message.

    Raises:
        DataError: the file cannot be read, or a line lacks a prompt or an answer.
    """
    found = []
    for line in prompts_of(data):
        prompt = prompt_of(line)
        if not line["answers"] or not (prompt.text or prompt.messages):
            raise DataError(
                line["where"],
                found="an answer without a question" if line["answers"] else "no answer",
                expected=_SHAPES,
                fix="Leave --generate out, or give prompts and their completions.",
            )
        found.append(Question(line["where"], prompt, tuple(line["answers"])))
    return found


def answered(
    generator: Generator,
    questions: Sequence[Question],
    max_new_tokens: int,
    stop: Sequence[str],
    progress: Progress,
) -> dict[str, float]:
    """Return ``exact_match`` and ``f1`` of greedy completions.

    Raises:
        ZoExportError: generation failed; for a prompt that is too long, the message has its line.
    """
    exact = words = 0.0
    for number, question in enumerate(questions):
        progress("answering", number / len(questions))
        try:
            answer = generator.generate(question.prompt, max_new_tokens=max_new_tokens, stop=stop)
        except (ConfigError, DataError) as error:
            raise _in_line(error, question) from error
        exact += exact_match(answer.text, question.references)
        words += f1(answer.text, question.references)
    progress("answering", 1.0)
    return {"exact_match": exact / len(questions), "f1": words / len(questions)}


def _in_line(error: ZoExportError, question: Question) -> DataError:
    return DataError(
        f"{question.where}, {error.where}",
        found=error.found,
        expected=error.expected,
        fix=error.fix,
    )
