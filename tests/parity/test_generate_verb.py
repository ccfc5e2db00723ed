"""``zoexport generate``: keys, streams of prompts, states and adapters, and one message for what cannot be used."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.compiled import Compiler
from tests.support.generation import random_adapter
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.core.native import native_folder
from zoexport.session import Sampling, Session

pytestmark = pytest.mark.parity
KEYS = {
    "text",
    "tokens",
    "prompt_tokens",
    "stop",
    "prefill_tokens_per_second",
    "decode_tokens_per_second",
    "peak_anonymous_mb",
}
PROMPT = "The film is a warm and funny story"
MOST = ("--max-new-tokens", "12")


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[Any]:
    """The lines of JSON that a call prints."""
    assert run(["generate", *arguments]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_text_is_that_of_the_tokens(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(bundle)
    options = [str(bundle), "--prompt", PROMPT, "--no-chat-template", *MOST, "--json"]
    (result,) = said(capsys, *options)
    assert result.keys() == KEYS
    assert result["text"] == tokenizer.decode(result["tokens"])
    assert result["prompt_tokens"] == len(tokenizer(PROMPT)["input_ids"])
    assert (result["stop"], len(result["tokens"])) in (
        ("length", 12),
        ("eos", len(result["tokens"])),
    )
    pieces: list[str] = []
    again = Bundle.open(bundle).generate(PROMPT, max_new_tokens=12, on_text=pieces.append)
    assert "".join(pieces) == again.text == result["text"]


def test_every_line_of_a_file_is_continued(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "prompts.jsonl"
    prompts = [PROMPT, "Numbers such as 0 1 2", "café"]
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    results = said(capsys, str(bundle), "--data", str(data), "--max-new-tokens", "5", "--json")
    opened = Bundle.open(bundle)
    expected = [opened.generate(prompt, max_new_tokens=5).tokens for prompt in prompts]
    assert [result["tokens"] for result in results] == expected


def test_conversations_are_answered(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A last turn of the assistant's, as training data has, is left out."""
    data = tmp_path / "prompts.jsonl"
    turns = [{"role": "user", "content": "Is it good?"}, {"role": "assistant", "content": "Yes"}]
    records: list[Any] = [{"messages": turns[:1]}, {"messages": turns}, {"prompt": PROMPT}]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = [str(bundle), "--data", str(data), "--max-new-tokens", "5"]
    first, second, third = said(capsys, *options, "--json")
    opened = Bundle.open(bundle)
    assert first["tokens"] == second["tokens"]
    assert first["tokens"] == opened.generate(turns[:1], max_new_tokens=5).tokens
    assert third["tokens"] == opened.generate(PROMPT, max_new_tokens=5).tokens
    assert run(["generate", *options]) == 0  # text, for people
    assert capsys.readouterr().out == "".join(f"{one['text']}\n" for one in (first, second, third))


def test_prompts_are_asked_in_a_conversation(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Bundle.open(bundle)

    def turns(text: str, *first: str) -> list[dict[str, str]]:
        made = [{"role": "system", "content": one} for one in first]
        return [*made, {"role": "user", "content": text}]

    monkeypatch.setattr("sys.stdin", io.StringIO("Two\nlines"))
    options = [str(bundle), "--prompt", r"One\\n\nline", "--prompt", "-", *MOST, "--json"]
    asked = [turns("One\\n\nline"), turns("Two\nlines")]
    found = [one["tokens"] for one in said(capsys, *options)]
    assert found == [opened.generate(one, max_new_tokens=12).tokens for one in asked]
    (found,) = said(capsys, str(bundle), "--prompt", "a", "--system", "Be short.", *MOST, "--json")
    expected = opened.generate(turns("a", "Be short."), max_new_tokens=12)
    assert found["tokens"] == expected.tokens


def test_a_text_ends_before_a_stop_string(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [str(bundle), "--prompt", PROMPT, "--no-chat-template", *MOST, "--json"]
    (free,) = said(capsys, *options)
    stop = free["text"][3:5]
    (made,) = said(capsys, *options, "--stop", "nothing of it", "--stop", stop)
    assert (made["text"], made["stop"]) == (free["text"][: free["text"].index(stop)], "string")
    assert run(["generate", *options[:-1], "--stop", ""]) == 2
    assert "stop string" in capsys.readouterr().err


def test_a_seed_repeats_what_is_drawn(bundle: Path) -> None:
    opened = Bundle.open(bundle)

    def drawn(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.5, top_k=50, top_p=0.95, min_p=0.001, seed=seed)
        return opened.generate(PROMPT, max_new_tokens=20, sampling=sampling).tokens

    assert drawn(1) == drawn(1) != drawn(2)


def test_top_p_of_0_is_the_likeliest_token(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [str(bundle), "--prompt", PROMPT, *MOST, "--seed", "3", "--json"]
    likeliest, drawn, every = (
        said(capsys, *options, *more)[0]["tokens"]
        for more in ((), ("--temperature", "3", "--top-p", "0"), ("--temperature", "3"))
    )
    assert drawn == likeliest != every


def test_an_adapter_is_read_as_its_state(bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(bundle)
    with Session.open(bundle) as session:
        session.attach(tmp_path / "state")
        random_adapter(session)
        session.save()
    plain = opened.generate(PROMPT, max_new_tokens=12)
    trained = opened.generate(PROMPT, max_new_tokens=12, state=tmp_path / "state")
    assert plain.tokens != trained.tokens
    for kind in ("peft", "mlx"):
        adapter = tmp_path / kind
        opened.export_adapter(adapter, state=tmp_path / "state", format=kind)
        assert opened.generate(PROMPT, max_new_tokens=12, adapter=adapter).tokens == trained.tokens
        imported = opened.import_adapter(adapter, state=tmp_path / f"{kind}-state")
        assert imported.format == kind
    pickled = tmp_path / "peft"
    torch.save(load_file(pickled / "adapter_model.safetensors"), pickled / "adapter_model.bin")
    (pickled / "adapter_model.safetensors").unlink()
    assert opened.generate(PROMPT, max_new_tokens=12, adapter=pickled).tokens == trained.tokens


@pytest.mark.parametrize(
    ("arguments", "part", "code"),
    [
        ([], "--prompt and --data", 2),
        (["--prompt", "a", "--data", "d"], "--prompt and --data", 2),
        (["--system", "a", "--data", "d"], "--data, whose lines contain", 2),
        (["--prompt", "a", "--system", "b", "--no-chat-template"], "no chat template to use", 2),
        (["--prompt", "", "--no-chat-template"], "no tokens", 2),
        (["--prompt", "a " * 2000], "generate.context", 2),
        (["--prompt", "a", "--temperature", "-1"], "temperature", 2),
        (["--prompt", "a", "--temperature", "1", "--top-p", "1.5"], "top_p", 2),
        (["--prompt", "a", "--repetition-penalty", "0"], "repetition_penalty", 2),
        (["--prompt", "a", "--adapter", "x", "--state", "y"], "state and adapter", 2),
        (["--prompt", "a", "--state", "nowhere"], "nowhere", 1),
        (["--prompt", "a", "--adapter", "nowhere"], "nowhere", 1),
        (["--data", "nowhere"], "nowhere", 1),
    ],
)
def test_what_cannot_be_used(
    bundle: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], part: str, code: int
) -> None:
    assert run(["generate", str(bundle), *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert part in err


def test_lines_that_are_no_prompts(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    for content, part in (
        ('{"text": "a"}', "data.jsonl:1"),
        ("{", "not JSON"),
        ('{"prompt": 5}', "'prompt' that is number"),
        ('{"prompt": "a", "messages": []}', "several of them"),
        ('{"messages": [{"role": "user"}]}', "no 'content'"),
        ("[" * 100_000, "lists and objects inside one another"),
        ("", "no examples"),
    ):
        data.write_text(content)
        assert run(["generate", str(bundle), "--data", str(data)]) == 1
        assert part in capsys.readouterr().err


def test_the_runner_continues_every_line_too(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "prompts.jsonl"
    records: list[Any] = [{"prompt": PROMPT}, {"messages": [{"role": "user", "content": "Why?"}]}]
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    line = [native_folder() / "zoexport-runner", "generate", "--bundle", bundle, "--data", data]
    done = subprocess.run(
        [*map(str, line), "--max-new-tokens", "5"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    ours = [json.loads(text) for text in done.stdout.splitlines()]
    theirs = said(capsys, str(bundle), "--data", str(data), "--max-new-tokens", "5", "--json")
    assert [one.keys() for one in ours] == [KEYS] * 2
    for key in ("text", "tokens", "prompt_tokens", "stop"):
        assert [one[key] for one in ours] == [one[key] for one in theirs]
    # A bad line is found before any text is made.
    data.write_text(data.read_text() + '{"text": "a"}\n')
    done = subprocess.run([*map(str, line), "--json"], capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["error"]["where"].endswith("prompts.jsonl:3")
