"""Chat templates in pieces: what a session writes with them is what transformers writes."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support import tokenizers
from tests.support.chat_templates import OTHERS, TEMPLATES, chatting
from zoexport.core.errors import BundleError, DataError
from zoexport.data.chat_form import ChatForm, chat_form
from zoexport.session.data import Tokenizer

_CONTENTS = [
    *(
        "Hello",
        "",
        " \n",
        "  two\n\nlines  ",
        "\u3000wide\u00a0",
        "\x1cx\x1f",
        "<|im_end|>",
        "🙂 {{ x }}",
    ),
    *("<think>\nhm\n</think>\n\nYes.", "a</think>b</think>\nc", "\ue000 is no date"),
]


def bundle(folder: Path, tokenizer: Any) -> Path:
    form = chat_form(tokenizer)
    chat = {"no_chat": form} if isinstance(form, str) else {"chat": form.as_dict()}
    tokenizer.save_pretrained(folder / "files")
    return tokenizers.write_bundle(
        folder / "bundle", folder / "files", changes={"text": {"end_tokens": [2], **chat}}
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_are_written_as_the_template_does(tmp_path: Path, name: str) -> None:
    theirs = chatting(TEMPLATES[name])
    generator = random.Random(5)
    written = 0
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        for count, system in itertools.product(range(1, 9), (False, True)):
            roles = ["system"] * system + [("user", "assistant")[i % 2] for i in range(count)]
            messages = [(role, generator.choice(_CONTENTS)) for role in roles]
            reply = roles[-1] == "user"
            if system and name in ("gemma", "mistral"):
                with pytest.raises(DataError, match="'system' after"):
                    ours.chat(messages, reply=reply)
                continue
            text = ours.chat(messages, reply=reply)
            expected = theirs.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages],
                tokenize=False,
                add_generation_prompt=reply,
            )
            assert text == expected
            written += 1
    assert written >= 4


@pytest.mark.parametrize("name", TEMPLATES)
def test_other_orders_of_roles(tmp_path: Path, name: str) -> None:
    """Greetings, users one after another, and tools: as the template writes them, or refused."""
    theirs = chatting(TEMPLATES[name])
    generator = random.Random(9)
    written = set()
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        for _ in range(150):
            roles = [generator.choice(("assistant", "user"))]
            while len(roles) < generator.randint(1, 7):
                after = {"assistant": ["user", "tool"], "user": ["user", "assistant"]}
                roles.append(generator.choice(after.get(roles[-1], ["tool", "assistant"])))
            messages = [(role, generator.choice(_CONTENTS)) for role in roles]
            reply = roles[-1] != "assistant"
            with contextlib.suppress(DataError):
                text = ours.chat(messages, reply=reply)
                assert text == theirs.apply_chat_template(
                    [{"role": role, "content": content} for role, content in messages],
                    tokenize=False,
                    add_generation_prompt=reply,
                )
                pairs = set(itertools.pairwise(("begin", *roles)))
                written |= pairs & {("begin", "assistant"), ("user", "user"), ("assistant", "tool")}
    assert len(written) == {"llama2": 0, "gemma": 0, "qwen3": 2}.get(name, 3), written


def test_a_date_is_that_of_the_day(tmp_path: Path) -> None:
    theirs = chatting(TEMPLATES["llama3"])
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        before = datetime.date.today()
        text = ours.chat([("user", "Hi")])
        assert any(f"{day:%d %b %Y}" in text for day in (before, datetime.date.today()))


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_of_another_form_is_refused_with_its_reason(tmp_path: Path, name: str) -> None:
    template, reason = OTHERS[name]
    theirs = chatting(template)
    form = chat_form(theirs)
    assert isinstance(form, str) and reason in form
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours, pytest.raises(BundleError, match=reason):
        ours.chat([("user", "Hi")])


def test_orders_of_roles_that_a_template_lacks_are_refused(tmp_path: Path) -> None:
    with Tokenizer.open(bundle(tmp_path, chatting(TEMPLATES["chatml"]))) as ours:
        for messages, reply, says in [
            ([], True, "at least one"),
            ([("user", "a"), ("system", "b")], True, "'system' after 'user'"),
            ([("tool", "a")], True, "'tool' after 'begin'"),
            ([("critic", "a")], True, "'critic' after 'begin'"),
            ([("user", "a"), ("assistant", "b")], True, "'reply' after 'assistant'"),
        ]:
            with pytest.raises(DataError, match=says):
                ours.chat(messages, reply=reply)


def test_a_bundle_of_before_has_no_chat(tmp_path: Path) -> None:
    chatting(TEMPLATES["chatml"]).save_pretrained(tmp_path / "files")
    folder = tokenizers.write_bundle(tmp_path / "bundle", tmp_path / "files")
    with Tokenizer.open(folder) as ours, pytest.raises(BundleError, match="without the form"):
        ours.chat([("user", "a")])


@pytest.mark.parametrize(
    "change",
    [
        {"end_tokens": [10**9]},
        {"end_tokens": [-1]},
        {"end_tokens": ["a"]},
        {},
        {"end_tokens": [], "chat": {"between": {"begin": {"critic": ""}}, "content": {}}},
        {"end_tokens": [], "chat": {"between": {"critic": {"user": ""}}, "content": {}}},
        {"end_tokens": [], "chat": {"between": {"begin": {"user": 1}}, "content": {}}},
        {"end_tokens": [], "chat": {"between": {}, "content": {"user": "upper"}}},
        {"end_tokens": [], "chat": {"between": {}, "content": {}, "date": "%s"}},
        {"end_tokens": [], "chat": {"between": {}, "content": {}, "date": "%"}},
        {"end_tokens": [], "chat": {"between": {}, "content": {}, "end_tokens": [10**9]}},
        {"end_tokens": [], "chat": {"between": {}}},
        *(
            {"end_tokens": [], "chat": {"between": {}, "content": {}, "answer": answer}}
            for answer in (
                {},
                {"before": {"critic": ""}, "content": "whole", "end": ""},
                {"before": {"user": 1}, "content": "whole", "end": ""},
                {"before": {}, "content": "upper", "end": ""},
                {"before": {}, "content": "whole"},
            )
        ),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    from zoexport.core import manifest

    chatting(TEMPLATES["chatml"]).save_pretrained(tmp_path / "files")
    folder = tokenizers.write_bundle(tmp_path / "bundle", tmp_path / "files")
    path = folder / manifest.FILE
    content = {**json.loads(path.read_text("utf-8")), "text": change}
    content["bundle_id"] = manifest.bundle_id(content)
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    with pytest.raises(BundleError):
        Tokenizer.open(folder)


def test_pieces_are_read_back_from_what_a_manifest_has() -> None:
    form = chat_form(chatting(TEMPLATES["qwen3"]))
    assert isinstance(form, ChatForm)
    assert form.content["assistant"] == "answer"
    assert form.between["user"]["reply"] == "<|im_end|>\n<|im_start|>assistant\n"
    assert "end" not in form.between["assistant"]
    assert form.answer is not None and form.answer.content == "thought"
    assert form.answer.before == {"user": "<|im_end|>\n<|im_start|>assistant\n"}
    assert form.answer.end == "<|im_end|>\n"
    for name in TEMPLATES:
        other = chat_form(chatting(TEMPLATES[name]))
        assert isinstance(other, ChatForm) and (other.answer is None) == (name != "qwen3")


def test_answers_at_the_end_are_written_with_their_thoughts(tmp_path: Path) -> None:
    """Behind turns whose thoughts are left out: none, one, several, half of one, and line breaks around all."""
    parts = [
        "<think>",
        "</think>",
        "\n",
        "\n\n",
        "hm",
        " so",
        "yes.",
        "<think>\n",
        "\n</think>\n\n",
    ]
    generator = random.Random(8)
    theirs = chatting(TEMPLATES["qwen3"])
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        for count in range(300):
            roles = ["system"] * (count % 2) + ["user", "assistant"] * generator.randint(1, 3)
            messages = [
                (role, "".join(generator.choices(parts, k=generator.randint(0, 7))))
                for role in roles
            ]
            expected = theirs.apply_chat_template(
                [{"role": role, "content": content} for role, content in messages], tokenize=False
            )
            assert ours.chat(messages, reply=False) == expected
        for messages in ([("assistant", "a")], [("user", "a"), ("answer", "b")]):
            with pytest.raises(DataError, match="after"):
                ours.chat(messages, reply=False)


def test_an_order_that_ends_otherwise_is_still_no_answer(tmp_path: Path) -> None:
    """A template that counts the messages of a conversation that ends: it has replies and no end."""
    counted = TEMPLATES["chatml"].replace(
        "{% for",
        "{% if messages[-1].role == 'assistant' %}{{ messages | length }}{% endif %}{% for",
        1,
    )
    form = chat_form(chatting(counted))
    assert isinstance(form, ChatForm)
    assert form.answer is None and "end" not in form.between["assistant"]
