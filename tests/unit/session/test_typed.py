"""Examples that a person types: pairs and conversations become the examples that JSON Lines would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import tokenizers
from tests.support.chat_templates import chatting
from tests.support.tiny_models import CHAT_TEMPLATE
from tests.unit.session.test_read_examples import bundle, same, write
from zoexport.core.errors import BundleError, ConfigError, DataError, StateError
from zoexport.session import Dataset, abi
from zoexport.session.data import Tokenizer
from zoexport.session.job import Typed, write_typed

CHAT = (
    ("system", 'Be "brief".\n'),
    ("user", "How was it?"),
    ("assistant", " Warm, café 🦊."),
    ("user", ""),
    ("assistant", "It was <great>."),
)
EXAMPLES = [
    Typed("It was", " warm"),
    Typed(messages=CHAT),
    Typed("", "alone"),
    Typed(messages=CHAT[1:3]),
]


def line(example: Typed) -> dict[str, Any]:
    if example.messages:
        return {"messages": [{"role": role, "content": text} for role, text in example.messages]}
    return {"prompt": example.prompt, "completion": example.completion}


def digest(path: Path, folder: Path) -> str:
    with Dataset() as dataset, Tokenizer.open(folder) as tokenizer:
        dataset.read(path, tokenizer)
        return dataset.digest()


def test_what_is_typed_trains_as_the_same_lines(tmp_path: Path) -> None:
    bundle(tmp_path, chatting(CHAT_TEMPLATE), max_length=60)
    typed = tmp_path / "typed é.jsonl"
    write_typed(typed, EXAMPLES)
    assert list(map(json.loads, typed.read_text("utf-8").splitlines())) == list(map(line, EXAMPLES))
    lines = write(tmp_path, [line(example) for example in EXAMPLES])
    assert digest(typed, tmp_path / "bundle") == digest(lines, tmp_path / "bundle")
    same(tmp_path, typed, 60)  # as Python tokenizes it


def test_more_is_added_or_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "typed.jsonl"
    write_typed(path, EXAMPLES[:1], append=True)  # there is none yet
    write_typed(path, EXAMPLES[1:], append=True)
    whole = path.read_bytes()
    write_typed(path, EXAMPLES)
    assert path.read_bytes() == whole
    path.write_bytes(whole.rstrip(b"\n"))
    write_typed(path, EXAMPLES[:1], append=True)
    assert json.loads(path.read_text("utf-8").splitlines()[-1]) == line(EXAMPLES[0])
    assert len(path.read_text("utf-8").splitlines()) == len(EXAMPLES) + 1
    write_typed(path, [])
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("example", "where", "found"),
    [
        (Typed(), "example 2", "'messages' that is empty"),
        (Typed(messages=CHAT[:2]), "example 2", "a last message from 'user'"),
        (Typed(messages=CHAT[:1]), "example 2", "a last message from 'system'"),
        (
            Typed(messages=(("user", "a"), ("assistant", " \n"))),
            "example 2",
            "an empty last message",
        ),
        (
            Typed(messages=(("user", "a"), ("tool", "b"), ("assistant", "c"))),
            "example 2, message 2",
            "the role 'tool'",
        ),
        (Typed(messages=(("user", "\ud83d"), *CHAT[2:3])), "example 2", "no character of UTF-8"),
        (Typed("a", ""), "example 2", "an empty 'completion'"),
        (Typed("\udc00", "b"), "example 2", "no character of UTF-8"),
    ],
)
def test_what_could_not_be_learned_changes_nothing(
    tmp_path: Path, example: Typed, where: str, found: str
) -> None:
    path = tmp_path / "typed.jsonl"
    for append in (False, True):
        with pytest.raises(DataError, match=found) as refused:
            write_typed(path, [EXAMPLES[0], example], append=append)
        assert refused.value.where == where
        assert list(tmp_path.iterdir()) == []
    path.write_text("before\n")
    with pytest.raises(DataError, match=found):
        write_typed(path, [EXAMPLES[0], example], append=True)
    assert path.read_text() == "before\n"
    assert list(tmp_path.iterdir()) == [path]


def test_callers_of_c(tmp_path: Path) -> None:
    """Both forms at once, half a form, no example at all."""
    path = tmp_path / "typed.jsonl"

    def given(examples: object) -> None:
        abi.call("zo_typed_write", abi.path_bytes(path), json.dumps(examples).encode(), 0)

    both = {"prompt": "a", "completion": "b", "messages": [{"role": "assistant", "content": "a"}]}
    for example in (both, {"prompt": "a"}, {"messages": [{"role": "assistant"}]}, {}, 7):
        with pytest.raises((ConfigError, DataError), match="example 1"):
            given([example])
        assert not path.exists()
    with pytest.raises(ConfigError, match="examples: found no list"):
        given({"prompt": "a"})
    given([{"prompt": "a", "completion": "b", "messages": None}])
    assert json.loads(path.read_text("utf-8")) == {"prompt": "a", "completion": "b"}
    with pytest.raises(StateError):
        write_typed(tmp_path / "nowhere" / "typed.jsonl", EXAMPLES)


def test_a_model_without_a_chat_template_is_said_when_the_file_is_read(tmp_path: Path) -> None:
    bundle(tmp_path, tokenizers.tokenizer("gpt2"))
    path = tmp_path / "typed.jsonl"
    write_typed(path, EXAMPLES)
    with Dataset() as dataset, Tokenizer.open(tmp_path / "bundle") as tokenizer:
        with pytest.raises(BundleError, match="chat template") as refused:
            dataset.read(path, tokenizer)
        assert len(dataset) == 0
    assert refused.value.where == f"{path}:2, chat"
