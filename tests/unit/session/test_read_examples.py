"""Data files as the session reads them, against the tokenization by transformers: examples, shortening, every error."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import bundles, split_bundles, tokenizers
from tests.support.chat_templates import TEMPLATES, chatting
from tests.support.text_checks import ends_of
from tests.support.tiny_models import CHAT_TEMPLATE, masking_tokenizer
from tests.support.transformers_examples import tokenize_file
from zoexport.core.errors import Cancelled, ConfigError, DataError
from zoexport.data.examples import write_examples
from zoexport.data.text_entry import chat_entry
from zoexport.session import Dataset
from zoexport.session.data import Tokenizer

VOCABULARY = 4000
PROMPT = "The film is warm. It was <mask>. Nobody should miss it"


def bundle(
    folder: Path,
    theirs: Any,
    max_length: int = 24,
    *,
    masked: bool = False,
    end_tokens: Sequence[int] = (),
) -> Path:
    """A bundle with this tokenizer of transformers; the first of the end tokens is appended."""
    files = folder / "files"
    theirs.save_pretrained(files)
    text: dict[str, Any] = {"end_tokens": sorted(end_tokens)}
    if end_tokens:
        text["eos_token"] = end_tokens[0]
    if getattr(theirs, "chat_template", None):
        text |= chat_entry(theirs)
    if theirs.mask_token is not None:
        text["mask"] = {"text": theirs.mask_token, "id": theirs.mask_token_id}
    changes: dict[str, Any] = {"text": text}
    if masked:
        changes["bidirectional"] = {"pad_token": 1}
        make = functools.partial(split_bundles.write_bundle, lengths=(max_length,))
    else:
        make = functools.partial(bundles.write_bundle, max_length=max_length)
    make(folder / "like")
    model = json.loads((folder / "like" / "manifest.json").read_text())["model"]
    changes["model"] = {**model, "vocab_size": VOCABULARY}
    return tokenizers.write_bundle(folder / "bundle", files, changes=changes, write=make)


def write(folder: Path, lines: Sequence[object]) -> Path:
    path = folder / "data.jsonl"
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_text(text, "utf-8")
    return path


def same(folder: Path, path: Path, max_length: int = 24, *, masked: bool = False) -> int:
    """Check that the session reads what transformers gives; how many were shortened."""
    ends = ends_of(folder / "bundle")
    expected = tokenize_file(path, folder / "files", max_length, masked=masked, ends=ends)
    write_examples(expected.examples, folder / "tokens.jsonl")
    with Dataset() as ours, Dataset() as theirs, Tokenizer.open(folder / "bundle") as tokenizer:
        assert ours.read(path, tokenizer).shortened == expected.shortened
        theirs.load(folder / "tokens.jsonl")
        assert len(ours) == len(expected.examples)
        assert ours.digest() == theirs.digest()
    return expected.shortened


def random_line(generator: random.Random) -> dict[str, Any]:
    def text() -> str:
        return tokenizers.random_text(generator)[: generator.choice((6, 60, 400))] or "a"

    kind = generator.randrange(4)
    if kind == 0:
        return {"text": f"It was {text()}", "source": "anything"}
    choices = list(dict.fromkeys([" great", " terrible", f" so {text()}"]))
    if kind == 1:
        return {"prompt": text(), "completion": f" {text()}"}
    if kind == 3:
        return {"prompt": text(), "chosen": f" so {text()}", "rejected": f" not {text()}"}
    return {"prompt": text(), "completion": generator.choice(choices), "choices": choices}


@pytest.mark.parametrize("kind", ["gpt2", "smollm2", "qwen2", "llama3", "llama2", "gemma", "phi3"])
def test_texts_prompts_and_choices(tmp_path: Path, kind: str) -> None:
    generator = random.Random(f"lines of {kind}")
    bundle(tmp_path, tokenizers.tokenizer(kind), end_tokens=(2, 1))
    lines: list[object] = [random_line(generator) for _ in range(120)]
    lines[7:7] = ["", "   "]  # blank ones
    assert 10 < same(tmp_path, write(tmp_path, lines)) < 120


def test_a_token_across_the_border_is_of_the_completion(tmp_path: Path) -> None:
    theirs = tokenizers.tokenizer("gpt2")
    bundle(tmp_path, theirs)
    pairs = [("It wa", "s great"), ("It was", " great")]
    read: list[dict[str, Any]] = []
    with Tokenizer.open(tmp_path / "bundle") as tokenizer:
        lines = [{"prompt": prompt, "completion": text} for prompt, text in pairs]
        tokenizer.examples(write(tmp_path, lines), read.append)
    assert [one["merged"] for one in read] == [True, False]
    whole = theirs.encode("It was great")
    for one, begin in zip(read, (1, 2), strict=True):
        (made,) = one["candidates"]
        learned = [label for label in made["labels"] if label >= 0]
        assert made["tokens"][: len(whole)] == whole
        assert learned[: len(whole) - begin] == whole[begin:]


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, TEMPLATES["qwen3"]])
def test_conversations(tmp_path: Path, template: str) -> None:
    """With templates that write an answer alike everywhere, and with its thought where the conversation ends."""
    generator = random.Random(2)
    bundle(tmp_path, chatting(template), max_length=60)
    lines = []
    for _ in range(80):
        turns = ["user", "assistant"] * generator.randint(1, 3)
        words = [tokenizers.random_text(generator)[:30] or "yes" for _ in turns]
        if generator.random() < 0.5:
            words[1::2] = [f"<think>\nhm {word[:9]}\n</think>\n\n{word}" for word in words[1::2]]
        lines.append(
            {
                "messages": [
                    {"role": role, "content": word} for role, word in zip(turns, words, strict=True)
                ]
            }
        )
        lines[-1]["messages"][-1]["content"] += "."
        if generator.random() < 0.3:
            (turns, last) = (lines[-1]["messages"][:-1], lines[-1]["messages"][-1])
            other = {**last, "content": f"{last['content']} {words[0]}"}
            prompt = {"prompt": turns} if generator.random() < 0.5 else {}
            before = [] if prompt else turns
            lines[-1] = {**prompt, "chosen": [*before, last], "rejected": [*before, other]}
    assert same(tmp_path, write(tmp_path, lines), 60) > 5


def test_masks(tmp_path: Path) -> None:
    bundle(tmp_path, masking_tokenizer(), max_length=20, masked=True)
    choices = [" great", " terrible story"]
    lines = [
        {"prompt": PROMPT, "completion": one, **more}
        for one in choices
        for more in ({}, {"choices": choices})
    ]
    lines.append({"prompt": "It was <mask>", "completion": "great"})
    lines.append({"prompt": PROMPT, "chosen": choices[1], "rejected": choices[0]})
    assert same(tmp_path, write(tmp_path, lines), 20, masked=True) > 0


ASKED, ANSWER, OTHER = (
    {"role": role, "content": text}
    for role, text in (("user", "How?"), ("assistant", "So."), ("assistant", "No."))
)
REFUSED: list[tuple[object, str, str]] = [
    ("[1]", "a JSON list", "an object"),
    ('"text"', "a JSON string", "an object"),
    ({"txt": "a"}, "the key 'txt'", "such as 'text'"),
    ({"Choice": [], "prompt": "a", "completion": "b"}, "the key 'Choice'", "'choices'"),
    ({"input": "a"}, "the keys 'input'", "exactly one of the shapes"),
    ({"text": "a", "prompt": "b"}, "the keys ", "exactly one"),
    ({"messages": [ASKED, ANSWER], "conversations": [ASKED, ANSWER]}, "the keys", "exactly one"),
    (
        {"messages": [{**ASKED, "from": "human", "value": "a"}, ANSWER]},
        "both 'from' and",
        "one pair",
    ),
    ({"messages": [ASKED, ANSWER], "tools": "{}"}, "'tools' that is object", "schemas"),
    ({"messages": [ASKED, ANSWER], "tools": "["}, "something that is not JSON", "valid"),
    ({"conversations": [{"from": "human", "value": "a"}]}, "a last message from 'user'", "assist"),
    ({"prompt": [ASKED], "completion": "So."}, "'completion' that is string", "a list of"),
    ({"prompt": [ASKED], "completion": [ASKED]}, "a last message from 'user'", "assistant"),
    ({"instruction": "a", "output": " "}, "an empty 'output'", "text to be learned"),
    ({"instruction": "a", "output": "b", "text": "c"}, "the keys ", "exactly one"),
    ({"text": 3}, "'text' that is number", "text"),
    ({"prompt": "a"}, "no 'completion'", "the keys"),
    ({"prompt": "a", "completion": ""}, "an empty 'completion'", "text to be learned"),
    ({"prompt": "a", "completion": "b", "choices": "b"}, "'choices' that is string", "a list"),
    ({"prompt": "a", "completion": "b", "choices": ["b", "b"]}, "the choices", "different"),
    ({"prompt": "a", "completion": "c", "choices": ["a", "b"]}, "the completion 'c'", "one of"),
    ({"messages": []}, "'messages' that is empty", "ends with the assistant"),
    ({"messages": [3]}, "a JSON number", '"role", "content"'),
    ({"messages": [{"role": "user"}]}, "no 'content'", 'both "role" and "content"'),
    ({"messages": [{**ASKED, "content": None}, ANSWER]}, "'content' that is null", "text"),
    ({"messages": [{**ASKED, "content": []}, ANSWER]}, "'content' that is list", "text"),
    ({"messages": [{"role": "user", "content": "a"}]}, "a last message from 'user'", "assistant"),
    ({"messages": [{"role": "assistant", "content": " \n"}]}, "an empty last message", "learned"),
    ({"prompt": "a", "chosen": "b"}, "no 'rejected'", "the keys"),
    ({"chosen": "b", "rejected": "c"}, "no 'prompt'", "the keys"),
    ({"prompt": "a", "completion": "b", "chosen": "b"}, "the keys ", "exactly one"),
    ({"prompt": "a", "chosen": "", "rejected": "b"}, "an empty 'chosen'", "compared"),
    ({"prompt": "a", "chosen": "b", "rejected": ""}, "an empty 'rejected'", "compared"),
    ({"prompt": "a", "chosen": "b", "rejected": "b"}, "a chosen and a rejected", "different"),
    ({"prompt": "a", "chosen": "b", "rejected": 3}, "'rejected' that is number", "text"),
    ({"prompt": "a", "choosen": "b", "rejected": "c"}, "the key 'choosen'", "'chosen'"),
    ({"prompt": "a", "chosen": [ANSWER], "rejected": [OTHER]}, "'prompt' that is string", "lists"),
    ({"prompt": [], "chosen": [ANSWER], "rejected": [OTHER]}, "'prompt' that is empty", "lists"),
    ({"chosen": [], "rejected": [OTHER]}, "'chosen' that is empty", "ends with the assistant"),
    ({"chosen": [ANSWER], "rejected": [3]}, "a JSON number", '"role", "content"'),
    ({"chosen": [ANSWER], "rejected": [ASKED]}, "a last message from 'user'", "assistant"),
    ({"chosen": [ANSWER], "rejected": [ANSWER]}, "a chosen and a rejected", "different"),
    ({"chosen": [ASKED, ANSWER], "rejected": [OTHER]}, "conversations that differ", "same turns"),
    ({"chosen": [ANSWER], "rejected": "b"}, "no 'prompt'", "the keys"),
    ({"text": ""}, "0 tokens, none of which", "at least one token"),
    ({"text": "a"}, "1 tokens, none of which", "at least one token"),
]


@pytest.mark.parametrize(("line", "found", "expected"), REFUSED)
def test_bad_lines_are_named(tmp_path: Path, line: object, found: str, expected: str) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"))
    path = write(tmp_path, [{"text": "It was great"}, line])
    with Dataset() as dataset, Tokenizer.open(tmp_path / "bundle") as tokenizer:
        with pytest.raises(DataError) as caught:
            dataset.read(path, tokenizer)
        assert len(dataset) == 0
    error = caught.value
    assert error.found.startswith(found) and expected in error.expected
    assert error.where.startswith(f"{path}:2") and error.fix


def test_messages_are_counted_from_one(tmp_path: Path) -> None:
    bundle(tmp_path, chatting(CHAT_TEMPLATE))
    path = write(tmp_path, [{"messages": [ASKED, {**ANSWER, "content": None}, ASKED, ANSWER]}])
    with Dataset() as dataset, Tokenizer.open(tmp_path / "bundle") as tokenizer:
        with pytest.raises(DataError) as caught:
            dataset.read(path, tokenizer)
        assert len(dataset) == 0
    assert caught.value.where == f"{path}:1, message 2"


def test_lines_that_are_no_json_and_files_that_are_none(tmp_path: Path) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"))
    with Dataset() as dataset, Tokenizer.open(tmp_path / "bundle") as tokenizer:
        for content, found in (
            (b'{"text": "a}', "not JSON"),
            (b'{"text": "\xff"}', "not UTF-8"),
            (b'{"text": "\\ud83d"}', "not JSON"),
            (b'{"text": "a", "text": "b"}', "two members"),
            (b"[" * 200_000, "lists and objects"),
            (b" \n\n", "no examples"),
        ):
            path = tmp_path / "bad.jsonl"
            path.write_bytes(content)
            with pytest.raises(DataError, match=found) as caught:
                dataset.read(path, tokenizer)
            assert ("iconv -f LATIN1 -t UTF-8" in caught.value.fix) == (found == "not UTF-8")
        with pytest.raises(DataError, match=r"none\.jsonl"):
            dataset.read(tmp_path / "none.jsonl", tokenizer)
        with pytest.raises(DataError, match="no 'choices'"):
            dataset.read(write(tmp_path, [{"text": "It was great"}]), tokenizer, loss="choices")
        three = {"prompt": "a", "completion": "b", "choices": ["b", "c", "d"]}
        for line in ({"text": "It was great"}, three):
            for loss in ("dpo", "orpo"):
                with pytest.raises(DataError, match="no 'chosen' and 'rejected'"):
                    dataset.read(write(tmp_path, [line]), tokenizer, loss=loss)
        with pytest.raises(ConfigError, match="setting 'loss': found 'hinge'"):
            dataset.read(tmp_path / "data.jsonl", tokenizer, loss="hinge")
        assert len(dataset) == 0
        pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
        two = {"prompt": "a", "completion": "c", "choices": ["b", "c"]}
        for loss in ("full", "choices", "dpo", "orpo"):
            dataset.read(write(tmp_path, [pair, two]), tokenizer, loss=loss)
        assert len(dataset) == 8


def test_reading_can_be_ended_and_then_nothing_is_appended(tmp_path: Path) -> None:
    made = bundle(tmp_path, tokenizers.tokenizer("gpt2"))
    path = write(tmp_path, [{"text": f"film {number}"} for number in range(50)])
    seen: list[tuple[int, int]] = []
    with Tokenizer.open(made) as tokenizer, Dataset() as dataset:
        with pytest.raises(Cancelled, match=r"data\.jsonl"):
            dataset.read(path, tokenizer, on_part=lambda done, total: True)
        assert len(dataset) == 0
        dataset.read(path, tokenizer, on_part=lambda done, total: seen.append((done, total)))
        assert len(dataset) == 50
    size = path.stat().st_size
    assert seen[-1] == (size, size) and seen[0][1] == size


def tokens_of(folder: Path, *lines: object) -> list[Any]:
    """The candidates of each line."""
    found: list[Any] = []
    with Tokenizer.open(folder / "bundle") as tokenizer:
        tokenizer.examples(write(folder, lines), found.append)
    assert all("problem" not in one for one in found), found
    return [one["candidates"] for one in found]


def test_conversations_by_other_names(tmp_path: Path) -> None:
    bundle(tmp_path, chatting(CHAT_TEMPLATE), max_length=60)
    system = {"role": "system", "content": "Be short."}
    shared = [
        {"from": name, "value": one["content"], "weight": None}
        for name, one in zip(("system", "human", "gpt"), (system, ASKED, ANSWER), strict=True)
    ]
    alike = tokens_of(
        tmp_path,
        {"messages": [system, ASKED, ANSWER], "tools": None},
        {"conversations": shared, "id": 7},
        {"conversations": [system, ASKED, ANSWER], "tools": []},
        {"prompt": [system, ASKED], "completion": [ANSWER]},
    )
    assert alike[1:] == alike[:1] * 3
    short, long, *written = tokens_of(
        tmp_path,
        {"instruction": "How?", "output": "So."},
        {"instruction": "How?", "input": "It.", "output": "So."},
        {"messages": [ASKED, ANSWER]},
        {"messages": [{**ASKED, "content": "How?\n\nIt."}, ANSWER]},
    )
    assert [short, long] == written


def test_instructions_without_a_chat_template(tmp_path: Path) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"), max_length=200)
    begin = "Below is an instruction that describes a task"
    ask = ". Write a response that appropriately completes the request.\n\n### Instruction:\nHow?"
    more = ", paired with an input that provides further context"
    short, long, *written = tokens_of(
        tmp_path,
        {"instruction": "How?", "input": "", "output": "So."},
        {"instruction": "How?", "input": "It.", "output": "So."},
        {"prompt": f"{begin}{ask}\n\n### Response:\n", "completion": "So."},
        {
            "prompt": f"{begin}{more}{ask}\n\n### Input:\nIt.\n\n### Response:\n",
            "completion": "So.",
        },
    )
    assert [short, long] == written


def test_keys_that_are_not_used_are_told(tmp_path: Path) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"))
    lines = [{"text": "It was great", "label": 1}, {"prompt": "a", "completion": "b", "id": 2}]
    with Dataset() as dataset, Tokenizer.open(tmp_path / "bundle") as tokenizer:
        note = dataset.read(write(tmp_path, lines), tokenizer).note
        assert note.endswith("Keys of the examples that are not used: 'id', 'label'.")
        used = {"prompt": "a", "completion": "b", "answers": ["b"]}
        assert "not used" not in dataset.read(write(tmp_path, [used]), tokenizer).note


def test_answers_that_are_learned(tmp_path: Path) -> None:
    """All of them, the greeting too; the last one with mask_history, and where the template writes others otherwise."""
    turns = [{**OTHER, "content": "Hi!"}, ASKED, ANSWER, ASKED, OTHER]
    bundle(tmp_path, chatting(CHAT_TEMPLATE), max_length=60)
    path = write(tmp_path, [{"messages": turns}])
    with Tokenizer.open(tmp_path / "bundle") as tokenizer, Dataset() as dataset:

        def learned(**reads: Any) -> str:
            found: list[Any] = []
            tokenizer.examples(path, found.append, **reads)
            labels = found[0]["candidates"][0]["labels"]
            return "".join(
                tokenizer.decode([label], special=True) if label >= 0 else "\n\n"
                for label in labels
            )

        every = [part for part in learned().split("\n\n") if part]
        assert [part.strip() for part in every if part.strip()] == [
            "Hi!<|im_end|>",
            "So.<|im_end|>",
            "No.<|im_end|>",
        ]
        last = [part for part in learned(mask_history=True).split("\n\n") if part]
        assert [part.strip() for part in last if part.strip()] == ["No.<|im_end|>"]
        assert not dataset.read(path, tokenizer).note


def test_a_template_that_writes_earlier_answers_otherwise(tmp_path: Path) -> None:
    turns = [ASKED, {**ANSWER, "content": "<think>\nhm\n</think>\n\nSo."}, ASKED, OTHER]
    bundle(tmp_path, chatting(TEMPLATES["qwen3"]), max_length=60)
    path = write(tmp_path, [{"messages": turns}])
    with Tokenizer.open(tmp_path / "bundle") as tokenizer, Dataset() as dataset:
        note = dataset.read(path, tokenizer).note
        assert note.startswith("Of 1 conversation the last answer alone is learned")
        assert not dataset.read(path, tokenizer, mask_history=True).note


def test_end_tokens_can_be_left_out(tmp_path: Path) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"), end_tokens=(2,))
    found: list[Any] = []
    lines: list[object] = [{"text": "It was great"}, {"prompt": "a", "completion": " b"}]
    with Tokenizer.open(tmp_path / "bundle") as tokenizer:
        for append in (True, False):
            tokenizer.examples(write(tmp_path, lines), found.append, append_eos=append)
    with_end, without = found[:2], found[2:]
    for one, other in zip(with_end, without, strict=True):
        assert one["candidates"][0]["tokens"] == [*other["candidates"][0]["tokens"], 2]


def test_reasoning_is_written_as_the_template_does(tmp_path: Path) -> None:
    theirs = chatting(TEMPLATES["qwen3"])
    bundle(tmp_path, theirs, max_length=80)
    thought = {**ANSWER, "reasoning_content": "so\n\nwhat"}
    for turns in ([ASKED, thought], [ASKED, thought, ASKED, OTHER], [ASKED, OTHER, ASKED, thought]):
        ((found,),) = tokens_of(tmp_path, {"messages": turns})
        text = theirs.apply_chat_template(turns, tokenize=False)
        assert found["tokens"] == theirs(text, add_special_tokens=False)["input_ids"]
        assert ("so\n\nwhat" in text) == (turns[-1] is thought)
    with Tokenizer.open(bundle(tmp_path / "other", chatting(CHAT_TEMPLATE))) as tokenizer:
        problems: list[Any] = []
        tokenizer.examples(write(tmp_path, [{"messages": [ASKED, thought]}]), problems.append)
    assert problems[0]["problem"]["found"] == "the key 'reasoning_content'"
