"""Examples as the session reads them: shapes, labels, truncation, and every error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.readings import read_line, read_lines
from tests.support.tiny_models import TOKENIZER_SIZE, VOCAB_SIZE, tiny_tokenizer
from zoexport.core.errors import ConfigError, DataError
from zoexport.data.examples import IGNORED, Candidate, Example


def _examples(tokenizer: Any, line: dict[str, Any], max_length: int = 1000) -> tuple[Example, bool]:
    found = read_line(tokenizer, line, max_length)
    return _example(found), found["shortened"]


def _example(found: dict[str, Any]) -> Example:
    candidates = [Candidate(**candidate) for candidate in found["candidates"]]
    return Example(candidates, found["target"])


def _labels(candidate: Candidate) -> list[int]:
    return [label for label in candidate.labels if label != IGNORED]


def _check_shifted(candidate: Candidate) -> None:
    assert len(candidate.labels) == len(candidate.tokens)
    assert candidate.labels[-1] == IGNORED
    for position, label in enumerate(candidate.labels[:-1]):
        assert label in (IGNORED, candidate.tokens[position + 1])


def test_text_labels_every_token_but_the_first() -> None:
    tokenizer = tiny_tokenizer()
    example, shortened = _examples(tokenizer, {"text": "It was great"})
    tokens = tokenizer("It was great")["input_ids"]
    (candidate,) = example.candidates
    assert candidate.tokens == tokens
    assert candidate.labels == [*tokens[1:], IGNORED]
    assert (example.target, shortened) == (0, False)


def test_text_is_cut_at_its_end() -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer("It was great")["input_ids"]
    example, shortened = _examples(tokenizer, {"text": "It was great"}, max_length=4)
    assert example.candidates == [Candidate(tokens[:4], [*tokens[1:4], IGNORED])]
    assert shortened
    assert not _examples(tokenizer, {"text": "It was great"}, max_length=len(tokens))[1]


@pytest.mark.parametrize("bos", [False, True])
def test_completion_is_joined_without_special_tokens(bos: bool) -> None:
    tokenizer = tiny_tokenizer(bos=bos)
    prompt = tokenizer("It was")["input_ids"]
    completion = tokenizer(" great", add_special_tokens=False)["input_ids"]
    assert (prompt[0] == 1) is bos
    example, _ = _examples(tokenizer, {"prompt": "It was", "completion": " great", "id": 7})
    (candidate,) = example.candidates
    assert candidate.tokens == prompt + completion
    assert _labels(candidate) == completion
    assert candidate.labels[len(prompt) - 1] == completion[0]
    _check_shifted(candidate)


def test_prompt_loses_its_start() -> None:
    tokenizer = tiny_tokenizer(bos=True)
    prompt = tokenizer("It was a long day")["input_ids"]
    completion = tokenizer(" great", add_special_tokens=False)["input_ids"]
    line = {"prompt": "It was a long day", "completion": " great"}
    example, shortened = _examples(tokenizer, line, max_length=len(completion) + 3)
    assert example.candidates[0].tokens == prompt[-3:] + completion
    assert _labels(example.candidates[0]) == completion
    assert shortened


def test_completion_longer_than_the_sequence_is_cut_at_its_end() -> None:
    tokenizer = tiny_tokenizer()
    completion = tokenizer(" a very long completion", add_special_tokens=False)["input_ids"]
    line = {"prompt": "It was", "completion": " a very long completion"}
    example, shortened = _examples(tokenizer, line, max_length=5)
    # No prompt token is left to predict the completion's first token from.
    assert example.candidates == [Candidate(completion[:5], [*completion[1:5], IGNORED])]
    assert shortened


def test_choices_keep_the_same_prompt() -> None:
    tokenizer = tiny_tokenizer()
    choices = [" great", " terrible indeed, what a waste"]
    line = {"prompt": "The film is warm. It was", "completion": choices[0], "choices": choices}
    lengths = [len(tokenizer(c, add_special_tokens=False)["input_ids"]) for c in choices]
    assert lengths[0] < lengths[1]
    example, shortened = _examples(tokenizer, line, max_length=lengths[1] + 4)
    first, second = example.candidates
    assert first.tokens[:4] == second.tokens[:4] == tokenizer(line["prompt"])["input_ids"][-4:]
    assert [len(_labels(c)) for c in example.candidates] == lengths
    assert shortened
    assert example.target == 0
    other, _ = _examples(tokenizer, {**line, "completion": choices[1]})
    assert other.target == 1


_CHAT = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "How was it?"},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "And the sea?"},
    {"role": "assistant", "content": "It was great"},
]


def test_messages_label_every_answer() -> None:
    tokenizer = tiny_tokenizer()
    example, _ = _examples(tokenizer, {"messages": _CHAT})
    (candidate,) = example.candidates
    assert tokenizer.decode(candidate.tokens) == tokenizer.apply_chat_template(
        _CHAT, tokenize=False
    )
    assert tokenizer.decode(_labels(candidate)) == "Fine.<|im_end|>\nIt was great<|im_end|>\n"
    _check_shifted(candidate)


def test_messages_lose_their_start() -> None:
    tokenizer = tiny_tokenizer()
    whole, _ = _examples(tokenizer, {"messages": _CHAT})
    example, shortened = _examples(tokenizer, {"messages": _CHAT}, max_length=20)
    assert example.candidates[0].tokens == whole.candidates[0].tokens[-20:]
    assert shortened


THINKING = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


def test_last_turn_is_found_where_the_generation_prompt_is_no_prefix() -> None:
    tokenizer = tiny_tokenizer(chat_template=THINKING)
    example, _ = _examples(tokenizer, {"messages": _CHAT})
    labelled = tokenizer.decode(_labels(example.candidates[0]))
    assert labelled.strip() == _CHAT[-1]["content"] + "<|im_end|>"


def test_token_across_the_start_of_the_turn_is_learned() -> None:
    # " the" is one token to this tokenizer; the template ends the header with the space.
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    tokenizer = tiny_tokenizer(chat_template=template)
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "the sea"}]
    example, _ = _examples(tokenizer, {"messages": messages})
    assert tokenizer.decode(_labels(example.candidates[0])) == " the sea"


_BAD_LINES: list[tuple[str, bytes, str]] = [
    ("bad json", b'{"text": "a"', "not JSON"),
    ("nan is no object", b"NaN", "not JSON"),
    ("list", b'["a"]', "a JSON list"),
    ("string", b'"text"', "a JSON string"),
    ("null", b"null", "null"),
    ("unknown shape", b'{"question": "a", "answer": "b"}', "the keys 'question', 'answer'"),
    ("no keys", b"{}", "the keys none"),
    ("two shapes", b'{"text": "a", "prompt": "b", "completion": "c"}', "the keys"),
    ("misspelled", b'{"prompt": "a", "completion": "b", "choice": ["b", "c"]}', "'choices'"),
    ("tools", b'{"messages": [], "tools": [{}]}', "'messages' that is empty"),
    ("text type", b'{"text": 3}', "'text' that is number"),
    ("text bool", b'{"text": true}', "true or false"),
    ("no completion", b'{"prompt": "a"}', "no 'completion'"),
    ("only choices", b'{"choices": ["a", "b"]}', "no 'prompt'"),
    ("null prompt", b'{"prompt": null, "completion": "a"}', "null"),
    ("empty completion", b'{"prompt": "a", "completion": ""}', "an empty 'completion'"),
    ("choices type", b'{"prompt": "a", "completion": "b", "choices": "b"}', "list of text"),
    ("choices items", b'{"prompt": "a", "completion": "b", "choices": ["b", 1]}', "list of text"),
    ("one choice", b'{"prompt": "a", "completion": "b", "choices": ["b"]}', "the choices"),
    ("same choices", b'{"prompt": "a", "completion": "b", "choices": ["b", "b"]}', "the choices"),
    ("empty choice", b'{"prompt": "a", "completion": "b", "choices": ["b", ""]}', "the choices"),
    ("not a choice", b'{"prompt": "a", "completion": "b", "choices": ["c", "d"]}', "not among"),
    ("no messages", b'{"messages": []}', "empty"),
    ("messages type", b'{"messages": "hi"}', "string"),
    ("message type", b'{"messages": ["hi"]}', "message 1"),
    ("no role", b'{"messages": [{"content": "hi"}]}', "no 'role'"),
    ("content parts", b'{"messages": [{"role": "assistant", "content": []}]}', "list"),
    ("user last", b'{"messages": [{"role": "user", "content": "hi"}]}', "from 'user'"),
    ("blank turn", b'{"messages": [{"role": "assistant", "content": " "}]}', "empty last"),
    ("surrogate", b'{"text": "a \\ud800 b"}', "not JSON"),
    ("deep", b"[" * 100_000, "more than 64 lists and objects"),
    ("latin-1", '{"text": "é"}'.encode("latin-1"), "not UTF-8"),
    ("no label", b'{"text": "a"}', "1 tokens, none of which"),
    ("no text", b'{"text": ""}', "0 tokens, none of which"),
    ("no prompt", b'{"prompt": "", "completion": "a"}', "none of which"),
]


@pytest.mark.parametrize(
    ("line", "message"), [case[1:] for case in _BAD_LINES], ids=[case[0] for case in _BAD_LINES]
)
def test_bad_line_is_named(line: bytes, message: str) -> None:
    content = b'{"text": "It was great"}\n\n  \n' + line + b"\n"
    with pytest.raises(DataError) as raised:
        read_lines(tiny_tokenizer(), content, 16)
    assert "data.jsonl:4" in raised.value.where
    assert message in str(raised.value)


def test_choices_of_the_same_tokens_are_refused() -> None:
    tokenizer = tiny_tokenizer()
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    line = {"prompt": "a", "completion": " Yes", "choices": [" Yes", " yes"]}
    with pytest.raises(DataError, match="the same tokens"):
        _examples(tokenizer, line)


def test_conversations_without_a_chat_template_are_refused() -> None:
    with pytest.raises(DataError, match=r"data.jsonl:1.*has no chat template"):
        _examples(tiny_tokenizer(chat_template=None), {"messages": _CHAT})


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    line = json.dumps({"text": "It was great"}).encode()
    ids = tiny_tokenizer()("It was great")["input_ids"]
    assert max(ids) < TOKENIZER_SIZE
    with pytest.raises(DataError, match=f"id {max(ids)}"):
        read_lines(tiny_tokenizer(), line, 16, vocab_size=max(ids))
    assert not read_lines(tiny_tokenizer(), line, 16, vocab_size=max(ids) + 1)[0]["shortened"]


def test_a_row_has_two_tokens_at_least() -> None:
    with pytest.raises(ConfigError, match="max_length"):
        _examples(tiny_tokenizer(), {"text": "It was great"}, 1)


def test_order_is_kept() -> None:
    lines: list[object] = [
        {"text": "It was great"},
        {"prompt": "The film. It was", "completion": " great"},
        {"messages": _CHAT},
        {"prompt": "It was", "completion": "b", "choices": ["a", "b"]},
    ]
    content = "\ufeff" + "\n\n".join(map(json.dumps, lines * 100))
    found = read_lines(tiny_tokenizer(), content.encode(), 24)
    assert [line["line"] for line in found] == list(range(1, 800, 2))
    examples = [_example(line) for line in found]
    assert examples == examples[:4] * 100
    assert sum(line["shortened"] for line in found) == 100
    assert [example.target for example in examples[:4]] == [0, 0, 0, 1]
    for example in examples[:4]:
        for candidate in example.candidates:
            assert len(candidate.tokens) <= 24
            _check_shifted(candidate)
            assert all(0 <= token < VOCAB_SIZE for token in candidate.tokens)
