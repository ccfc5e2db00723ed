"""Prompts with a mask token: labels at the masks, candidates of unequal lengths, shortening, and every error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.readings import read_line
from tests.support.tiny_models import masking_tokenizer, tiny_tokenizer
from zoexport.core.errors import DataError
from zoexport.data.examples import IGNORED, Candidate

PROMPT = "The film is warm. It was <mask>. Nobody should miss it"


def examples(
    line: dict[str, Any], max_length: int = 1000, tokenizer: Any = None
) -> tuple[list[Candidate], int, bool]:
    found = read_line(tokenizer or masking_tokenizer(), line, max_length, masked=True)
    candidates = [Candidate(**candidate) for candidate in found["candidates"]]
    return candidates, found["target"], found["shortened"]


def plain(text: str) -> list[int]:
    tokens: list[int] = masking_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return tokens


def test_a_mask_for_each_token_of_the_completion() -> None:
    choices = [" great", " terrible story"]
    candidates, target, shortened = examples(
        {"prompt": PROMPT, "completion": choices[1], "choices": choices}
    )
    assert (target, shortened) == (1, False)
    before, after = plain("The film is warm. It was"), plain(". Nobody should miss it")
    lengths = set()
    for candidate, choice in zip(candidates, choices, strict=True):
        completion = plain(choice)
        lengths.add(len(completion))
        masks = [3] * len(completion)
        assert candidate.tokens == [0, *before, *masks, *after, 2]
        ignored = [IGNORED] * (1 + len(before))
        assert candidate.labels == [*ignored, *completion, *[IGNORED] * (len(after) + 1)]
    assert len(lengths) == 2, "the choices have as many tokens each, and test less than they should"


def test_long_prompts_lose_their_start_and_then_their_end() -> None:
    line = {"prompt": PROMPT, "completion": " great", "choices": [" great", " terrible story"]}
    whole, _, _ = examples(line)
    lengths = [len(candidate.tokens) for candidate in whole]
    before, after = plain("The film is warm. It was"), plain(". Nobody should miss it")
    longest = len(plain(" terrible story"))
    assert examples(line, max(lengths))[2] is False
    for excess in range(1, len(before) + len(after) + 1):
        cut, _, shortened = examples(line, max(lengths) - excess)
        assert shortened
        kept_before = before[min(excess, len(before)) :]
        kept_after = after[: len(after) - max(excess - len(before), 0)]
        for candidate, all_of_it in zip(cut, whole, strict=True):
            masks = [token for token in all_of_it.tokens if token == 3]
            assert candidate.tokens == [0, *kept_before, *masks, *kept_after, 2]
            labels = [label for label in all_of_it.labels if label != IGNORED]
            assert [label for label in candidate.labels if label != IGNORED] == labels
            assert candidate.labels.index(labels[0]) == candidate.tokens.index(3)
    assert examples(line, longest + 2)[0][1].tokens == [0, *[3] * longest, 2]
    with pytest.raises(DataError, match="no room for the tokenizer's special tokens"):
        examples(line, longest + 1)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"text": "It was great"}, "without a prompt"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "without a prompt",
        ),
        ({"prompt": "It was", "completion": " great"}, "no mask token in the prompt"),
        ({"prompt": "It was [MASK].", "completion": " great"}, "no mask token in the prompt"),
        ({"prompt": "<mask> was <mask>", "completion": " great"}, "2 mask tokens in the prompt"),
    ],
)
def test_other_examples_are_refused_with_what_to_write(line: dict[str, Any], found: str) -> None:
    with pytest.raises(DataError, match=found) as raised:
        examples(line)
    assert raised.value.where.endswith("data.jsonl:1")
    assert '{"prompt": "... It was <mask>.", "completion": "great"}' in raised.value.fix


def test_the_tokenizer_needs_a_mask_token() -> None:
    with pytest.raises(DataError, match="no mask token"):
        examples({"prompt": PROMPT, "completion": " great"}, tokenizer=tiny_tokenizer())
