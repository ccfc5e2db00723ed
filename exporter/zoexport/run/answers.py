"""``eval --generate``: greedy answers to the examples' prompts, compared with the right ones by SQuAD's rules.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016): a text is compared in lower
case, without punctuation, the articles a, an and the, and more than one blank; ``exact_match`` is the share of answers
that are then equal to a reference, ``f1`` the mean of the words' F1; of several references the best counts.
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
    """A prompt and its right answers, at least one; ``where`` is the line."""

    where: str
    prompt: Prompt
    references: tuple[str, ...]


def normalized(answer: str) -> str:
    """A text as answers are compared."""
    lowered = answer.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lowered).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 where the answer is one of the references, else 0."""
    return float(any(normalized(answer) == normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of the answer's words, by the best reference."""
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
    """The questions of a data file: prompts with the texts under ``answers``, or with their completion or last message.

    Raises:
        DataError: it cannot be read, or a line has no prompt and answer.
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
    """``exact_match`` and ``f1`` of greedy answers.

    Raises:
        ZoExportError: something cannot be used; a prompt that is too long names its line.
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
