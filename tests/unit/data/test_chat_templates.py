"""Chat templates: what a session writes with them is what transformers writes, or it says why it writes nothing."""

from __future__ import annotations

import datetime
import json
import random
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.support import tokenizers
from tests.support.chat_templates import OTHERS, TEMPLATES, chatting, said
from zoexport.core.errors import BundleError, DataError, ZoExportError
from zoexport.data.text_entry import chat_entry
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
    *("<think>\nhm\n</think>\n\nYes.", "a</think>b</think>\nc", "</think><think>", "\\n 'q' \"p\""),
]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city: é",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {"city": {"type": "string"}, "days": {"type": ["integer", "null"]}},
            },
        },
    }
]
_ROW = {"s": " né\n", "n": -7, "f": 2.50, "t": True, "d": {"b": 1, "a": "x"}}
_ROW |= {"l": [3, "1", None], "p": [{"k": "b", "v": 2}, {"k": "A", "v": 1}]}
_NAMES = "{% set o = none %}" + "".join(f"{{% set {name} = messages[0].{name} %}}" for name in _ROW)
_SOURCES = json.loads(
    (Path(__file__).parents[2] / "data" / "template_sources.json").read_text("utf-8")
)
"""Templates of what the language has, and of what is wrong in it, over the names of ``_ROW``."""


def bundle(folder: Path, tokenizer: Any) -> Path:
    tokenizer.save_pretrained(folder / "files")
    return tokenizers.write_bundle(
        folder / "bundle",
        folder / "files",
        changes={"text": {"end_tokens": [2], **chat_entry(tokenizer)}},
    )


@pytest.mark.parametrize("source", _SOURCES)
def test_the_language_is_jinja_s(source: str) -> None:
    expected: str | None = None
    written = _NAMES + "{{ messages | string | length }}" + source
    row = {"role": "user", **_ROW}
    try:
        ((expected,), _) = render_jinja_template([[row]], chat_template=written)
    except Exception:
        expected = None
    with parsed(written) as ours:
        if expected is not None:
            assert ours.chat([row]) == expected
        else:
            with pytest.raises(DataError):
                ours.chat([row])


def parsed(template: str) -> Tokenizer:
    return Tokenizer.parse(
        tokenizers.tokenizer("qwen2").backend_tokenizer.to_str(),
        max_length=64,
        vocab_size=100_000,
        text={"end_tokens": [], "chat": {"template": template, "tokens": {}, "end_tokens": []}},
    )


def drawn(generator: random.Random) -> list[dict[str, Any]]:
    """A conversation with all that messages have: greetings, users in a row, thoughts, and calls of tools."""
    messages = [said("system", generator.choice(_CONTENTS))] if generator.random() < 0.4 else []
    if generator.random() < 0.2:
        messages.append(said("assistant", generator.choice(_CONTENTS)))
    for number in range(generator.randint(1, 4)):
        messages += [said("user", generator.choice(_CONTENTS))] * generator.choice((1, 1, 1, 2))
        if generator.random() < 0.3:
            arguments = {
                "city": "Zürich",
                "days": generator.choice((1, 2.5, None)),
                "a": [{"y": True}],
            }
            call = {"id": f"call{number:05}", "type": "function"}
            call["function"] = {"name": "weather", "arguments": arguments}
            messages.append({**said("assistant", None), "tool_calls": [call]})
            messages.append(
                {**said("tool", '{"t": 3}'), "tool_call_id": call["id"], "name": "weather"}
            )
        answer = said("assistant", generator.choice(_CONTENTS))
        if generator.random() < 0.2:
            name = generator.choice(("reasoning_content", "reasoning", "thinking"))
            answer[name] = generator.choice(("so\nit is", "hm", ""))
        messages.append(answer)
    return messages[:-1] if generator.random() < 0.5 else messages


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_are_written_as_transformers_does(tmp_path: Path, name: str) -> None:
    theirs = chatting(TEMPLATES[name])
    generator = random.Random(5)
    written = unread = 0
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        for _ in range(150):
            messages = drawn(generator)
            tools = _TOOLS if generator.random() < 0.3 else None
            reply = messages[-1]["role"] != "assistant"
            try:
                expected = theirs.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=reply
                )
            except Exception:
                expected = None
            try:
                text = ours.chat(messages, tools=tools, reply=reply)
            except DataError as error:
                text, lost = None, "template reads" in error.expected or error.where == "tools"
                unread += lost
            else:
                lost = False
                written += 1
            assert lost or text == expected
    assert written >= 10, (written, unread)


def test_what_a_template_does_not_read_is_an_error(tmp_path: Path) -> None:
    with Tokenizer.open(bundle(tmp_path, chatting(TEMPLATES["chatml"]))) as ours:
        plain = ours.chat([said("user", "a")])
        for more in ({"name": "Ann"}, {"id": "7"}, {"weight": None}, {"tool_calls": []}):
            assert ours.chat([{**said("user", "a"), **more}]) == plain
        for more in ({"reasoning_content": "hm"}, {"weight": 0}, {"tool_calls": [{"name": "f"}]}):
            (key,) = more
            with pytest.raises(DataError, match=f"message 2: found the key '{key}'"):
                ours.chat([said("user", "a"), {**said("assistant", "b"), **more}], reply=False)
        with pytest.raises(DataError, match="does not read"):
            ours.chat([said("user", "a")], tools=_TOOLS)
        with pytest.raises(DataError, match="at least one"):
            ours.chat([])


def test_a_date_is_that_of_the_day(tmp_path: Path) -> None:
    theirs = chatting(TEMPLATES["llama3"])
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours:
        before = datetime.date.today()
        text = ours.chat([said("user", "Hi")])
        assert any(f"{day:%d %b %Y}" in text for day in (before, datetime.date.today()))


@pytest.mark.parametrize("name", OTHERS)
def test_a_template_that_cannot_be_run_is_refused_with_its_reason(
    tmp_path: Path, name: str
) -> None:
    template, reason = OTHERS[name]
    theirs = chatting(template)
    assert reason in chat_entry(theirs)["no_chat"]
    with Tokenizer.open(bundle(tmp_path, theirs)) as ours, pytest.raises(BundleError, match=reason):
        ours.chat([said("user", "Hi")])


@pytest.mark.parametrize(
    "change",
    [
        {"end_tokens": [10**9]},
        {"end_tokens": [-1]},
        {"end_tokens": ["a"]},
        {},
        *(
            {"end_tokens": [], "chat": {"template": "", "tokens": {}, "end_tokens": [], **wrong}}
            for wrong in (
                {"template": 1},
                {"tokens": {"bos_token": 1}},
                {"end_tokens": [10**9]},
                {"tokens": []},
            )
        ),
        {"end_tokens": [], "chat": {"template": "a"}},
    ],
)
def test_other_entries_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    from zoexport.core import manifest

    chatting(TEMPLATES["chatml"]).save_pretrained(tmp_path / "files")
    folder = tokenizers.write_bundle(tmp_path / "bundle", tmp_path / "files")
    path = folder / manifest.FILE
    content = {**json.loads(path.read_text("utf-8")), "text": change}
    content["bundle_id"] = manifest.bundle_id(content)
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    with pytest.raises(BundleError):
        Tokenizer.open(folder)


def test_a_stranger_s_template_ends() -> None:
    """Without one of the limits this would run for hours, or fill the memory."""
    loop = "{% for a in range(99999) %}"
    for source in (
        loop * 4 + "{% endfor %}" * 4,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a' * 99999 * 99999 }}",
    ):
        with parsed(source) as ours, pytest.raises(ZoExportError):
            ours.chat([said("user", "a")])
