"""Drawn conversations: tokens and labels as TRL's collator has them, by templates with marks and without."""

from __future__ import annotations

import importlib.resources
import json
import random
from pathlib import Path
from typing import Any

import pytest
from trl.chat_template_utils import get_training_chat_template
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from tests.support.chat_templates import chatting, said
from zoexport.data.text_entry import chat_entry
from zoexport.session.data import Tokenizer

_CONVERSATIONS = 50
_TEMPLATES = ("llama3", "qwen3", "gemma3", "smollm2")
_MARKS = [
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
]
_WORDS = [
    "Hello",
    " there",
    "what is",
    " 2 + 2?",
    "\n",
    "naïve café",
    "你好",
    " 🙂",
    "It was great.",
    "  ",
    "\n\n- one",
]
_SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def templates(name: str) -> tuple[str, str]:
    """A model's chat template, and the same with marks for training, which TRL lacks for SmolLM2."""
    if name == "smollm2":
        return _SMOLLM2.replace("{% generation %}", "").replace("{% endgeneration %}", ""), _SMOLLM2
    place = importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja"
    plain = place.read_text("utf-8")
    marked = get_training_chat_template(chatting(plain))
    assert marked is not None
    return plain, marked


def conversations(name: str) -> list[list[dict[str, Any]]]:
    generator = random.Random(name)

    def text() -> str:
        return "".join(generator.choices(_WORDS, k=generator.randint(1, 6))).strip() or "a"

    return [
        [said("system", text())] * (generator.random() < 0.4)
        + [
            said(role, text())
            for _ in range(generator.randint(1, 4))
            for role in ("user", "assistant")
        ]
        for _ in range(_CONVERSATIONS)
    ]


def ours(
    folder: Path, tokenizer: Any, drawn: list[list[dict[str, Any]]]
) -> list[tuple[list[int], list[int]]]:
    """Tokens, and the label of each: the token itself where it is learned, or -100."""
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in drawn))
    read: list[dict[str, Any]] = []
    with Tokenizer.parse(
        tokenizer.backend_tokenizer.to_str(),
        max_length=4096,
        vocab_size=100_000,
        text={"end_tokens": [], **chat_entry(tokenizer)},
    ) as session:
        session.examples(path, read.append)
    candidates = [one["candidates"][0] for one in read]
    return [
        (one["tokens"], [-100, *(label if label >= 0 else -100 for label in one["labels"][:-1])])
        for one in candidates
    ]


def theirs(tokenizer: Any, drawn: list[list[dict[str, Any]]]) -> list[tuple[list[int], list[int]]]:
    collator = DataCollatorForLanguageModeling(pad_token_id=0)
    found = []
    for messages in drawn:
        made = tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True
        )
        # As SFTTrainer makes of the mask what its collator takes.
        pairs = zip(made["input_ids"], made["assistant_masks"], strict=True)
        labels = [token if learned else -100 for token, learned in pairs]
        batch = collator([{"input_ids": made["input_ids"], "labels": labels}])
        found.append((batch["input_ids"][0].tolist(), batch["labels"][0].tolist()))
    return found


@pytest.mark.parametrize("name", _TEMPLATES)
def test_marked_templates_are_learned_as_trl_does(tmp_path: Path, name: str) -> None:
    tokenizer = chatting(templates(name)[1])
    tokenizer.add_special_tokens({"additional_special_tokens": _MARKS})
    drawn = conversations(name)
    assert ours(tmp_path, tokenizer, drawn) == theirs(tokenizer, drawn)


@pytest.mark.parametrize("name", _TEMPLATES)
def test_templates_without_marks_are_learned_alike(tmp_path: Path, name: str) -> None:
    """Qwen 3's writes an answer otherwise once others follow it: of it the last one alone is learned."""
    plain, marked = templates(name)
    tokenizer = chatting(plain)
    tokenizer.add_special_tokens({"additional_special_tokens": _MARKS})
    drawn = conversations(name)
    found = ours(tmp_path, tokenizer, drawn)
    tokens = [tokenizer.apply_chat_template(one, return_dict=False) for one in drawn]
    assert [one[0] for one in found] == tokens
    if name == "qwen3":
        drawn = [one for one in drawn if len(one) <= 2 + (one[0]["role"] == "system")]
        found = ours(tmp_path, tokenizer, drawn)
        assert len(drawn) > 5
    tokenizer.chat_template = marked
    assert found == theirs(tokenizer, drawn)
