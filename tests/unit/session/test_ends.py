"""End tokens of examples: what ends, what the tokenizer writes by itself, what is cut, what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from tests.support.tiny_models import tiny_tokenizer
from tests.unit.session.test_read_examples import bundle, same, write
from zoexport.data.examples import IGNORED
from zoexport.session import Dataset
from zoexport.session.data import Tokenizer

START, END = ("<|im_start|>", 1), ("<|im_end|>", 2)
AROUND: dict[str, Any] = {
    "nothing": None,
    "both": processors.TemplateProcessing(
        single=f"{START[0]} $A {END[0]}", special_tokens=[START, END]
    ),
    "roberta": processors.RobertaProcessing(END, START, add_prefix_space=False),
}
"""What tokenizers write around a text, such as Llama's with add_bos_token and add_eos_token."""
ENDS = (2, 0)
PROMPT, ANSWER, OTHER = "It was a film of", " great warmth", " dull jokes"


class Reader:
    """Reads single lines with a bundle whose tokenizer writes these tokens around a text."""

    def __init__(self, folder: Path, around: str, ends: tuple[int, ...] = ENDS) -> None:
        self.folder = folder
        self.theirs = tiny_tokenizer()
        if AROUND[around] is not None:
            self.theirs.backend_tokenizer.post_processor = AROUND[around]
        self.begin = [START[1]] if around != "nothing" else []
        self.ends = ends
        self.calls = 0

    def bare(self, text: str) -> list[int]:
        tokens: list[int] = self.theirs(text, add_special_tokens=False)["input_ids"]
        return tokens

    def __call__(
        self, line: dict[str, Any], max_length: int = 90, *, loss: str = "full"
    ) -> list[tuple[list[int], int]]:
        """For each candidate its tokens and the place of its first label's token; labels must be the rest."""
        folder = self.folder / str(self.calls)
        self.calls += 1
        made = bundle(folder, self.theirs, max_length, end_tokens=self.ends)
        path = write(folder, [line])
        with Dataset() as dataset, Tokenizer.open(made) as tokenizer:
            self.read = dataset.read(path, tokenizer, loss=loss)
            dataset.write(folder / "session.jsonl")
        if loss == "full":
            same(folder, path, max_length)  # as Python reads it
        (example,) = map(json.loads, (folder / "session.jsonl").read_text().splitlines())
        found = []
        for one in example["candidates"]:
            tokens, labels = one["tokens"], one["labels"]
            first = next(place for place, label in enumerate(labels) if label != IGNORED) + 1
            assert labels == [IGNORED] * (first - 1) + tokens[first:] + [IGNORED]
            found.append((tokens, first))
        return found


@pytest.fixture(params=AROUND)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Reader:
    return Reader(tmp_path, request.param)


@pytest.mark.parametrize("ending", ["", END[0]])
def test_texts_end_once(reader: Reader, ending: str) -> None:
    whole = [*reader.begin, *reader.bare(PROMPT), END[1]]
    assert reader({"text": PROMPT + ending}) == [(whole, 1)]


@pytest.mark.parametrize("ending", ["", END[0]])
def test_completions_end_once(reader: Reader, ending: str) -> None:
    """And nothing that a tokenizer writes behind a text stands between a prompt and its completion."""
    prompt = [*reader.begin, *reader.bare(PROMPT)]
    found = reader({"prompt": PROMPT, "completion": ANSWER + ending})
    assert found == [([*prompt, *reader.bare(ANSWER), END[1]], len(prompt))]


def test_named_end_tokens_are_kept(reader: Reader) -> None:
    """One within a prompt is the writer's; after another end token of the model none is appended."""
    prompt = [*reader.begin, *reader.bare("Hi."), END[1]]
    found = reader({"prompt": "Hi." + END[0], "completion": "So<|endoftext|>"})
    assert found == [([*prompt, *reader.bare("So"), 0], len(prompt))]


def test_compared_choices_do_not_end(reader: Reader) -> None:
    prompt = [*reader.begin, *reader.bare(PROMPT)]
    line = {"prompt": PROMPT, "completion": ANSWER, "choices": [ANSWER, OTHER]}
    bare = [([*prompt, *reader.bare(one)], len(prompt)) for one in (ANSWER, OTHER)]
    for loss in ("full", "choices", "dpo"):
        assert reader(line, loss=loss) == bare


@pytest.mark.parametrize("loss", ["full", "dpo", "orpo", "choices"])
def test_both_answers_of_a_pair_end(reader: Reader, loss: str) -> None:
    prompt = [*reader.begin, *reader.bare(PROMPT)]
    end = [] if loss == "choices" else [END[1]]
    expected = [([*prompt, *reader.bare(one), *end], len(prompt)) for one in (ANSWER, OTHER)]
    assert reader({"prompt": PROMPT, "chosen": ANSWER, "rejected": OTHER}, loss=loss) == expected


def test_templates_end_conversations_by_themselves(reader: Reader) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = reader.theirs.apply_chat_template(turns, tokenize=False)
    assert [tokens for tokens, _ in reader({"messages": turns})] == [reader.bare(text)]


def test_what_exceeds_max_length_loses_the_right_end(reader: Reader) -> None:
    """A text and a completion that are cut at their end do not end; a prompt gives way to the end token."""
    prompt, answer = [*reader.begin, *reader.bare(PROMPT)], reader.bare(ANSWER)
    text = [*prompt, END[1]]
    for size, cut in ((len(text), 0), (len(text) - 1, 1), (len(text) - 3, 1)):
        assert reader({"text": PROMPT}, size) == [(text[:size], 1)]
        assert (reader.read.shortened, reader.read.longest) == (cut, len(text))
    line = {"prompt": PROMPT, "completion": ANSWER}
    size = len(answer) + 1
    assert reader(line, size + 3) == [([*prompt[-3:], *answer, END[1]], 3)]
    assert reader(line, size) == [([*answer, END[1]], 1)]
    assert reader(line, size - 1) == [(answer, 1)]
    assert reader(line, size - 2) == [(answer[:-1], 1)]
    assert (reader.read.shortened, reader.read.longest) == (1, len(prompt) + size)


def test_models_without_end_tokens_say_so(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "both", ends=())
    whole = reader.theirs(PROMPT)["input_ids"]
    assert reader({"text": PROMPT}) == [(whole, 1)]  # as the tokenizer is configured
    said = reader.read.note
    assert said.startswith("Texts and completions are trained without an end token")
    prompt = whole[:-1]
    assert reader({"prompt": PROMPT, "completion": ANSWER}) == [
        ([*prompt, *reader.bare(ANSWER)], len(prompt))
    ]
    assert reader.read.note == said
    reader({"prompt": PROMPT, "completion": ANSWER, "choices": [ANSWER, OTHER]})
    assert reader.read.note == ""


def test_shortened_examples_are_counted_in_a_sentence(tmp_path: Path) -> None:
    made = bundle(tmp_path, tiny_tokenizer(), 24, end_tokens=ENDS)
    lines = [{"text": "It was"}, *[{"text": "It was great " * count} for count in (1, 30, 20)]]
    for kept, verb in ((4, "are"), (3, "is")):
        with Dataset() as dataset, Tokenizer.open(made) as tokenizer:
            read = dataset.read(write(tmp_path, lines[:kept]), tokenizer)
            longest = len(tokenizer.encode(lines[2]["text"])) + 1
        assert (read.examples, read.longest) == (kept, longest)
        assert read.note == (
            f"{kept - 2} of {kept} examples {verb} longer than max_length=24 and {verb} shortened. "
            f"Compile with a larger max_length: the longest of them has {longest} tokens."
        )
    with Dataset() as dataset, Tokenizer.open(made) as tokenizer:
        assert dataset.read(write(tmp_path, lines[:1]), tokenizer).note == ""
