"""``zoexport chat`` with piped input, and ``eval --generate``: what they print, and the session's text behind it."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import said
from tests.support.compiled import Compiler
from tests.support.generation import adapted_state
from zoexport.api import Bundle
from zoexport.cli.main import run
from zoexport.session import Session

pytestmark = pytest.mark.parity
MOST = ["--max-new-tokens", "8"]
HELLO = "Is the film a good one?"
AGAIN = "And the plot?"


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)


@pytest.fixture(scope="module")
def state(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapted_state(bundle, tmp_path_factory.mktemp("chat") / "state")


def talk(monkeypatch: pytest.MonkeyPatch, text: str, *arguments: object) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return run(["chat", *map(str, arguments), *MOST])


def answers(bundle: Path, state: Path | None, *turns: str) -> list[str]:
    """What the session answers to these messages, one after another."""
    turns_so_far: list[dict[str, Any]] = []
    found = []
    with Session.open(bundle) as session:
        if state is not None:
            session.attach(state, read_only=True)
        for turn in turns:
            turns_so_far.append(said("user", turn))
            found.append(session.generate(messages=turns_so_far, max_new_tokens=8).text or "")
            turns_so_far.append(said("assistant", found[-1]))
    return found


def test_answers_go_on_from_what_was_said(
    bundle: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(monkeypatch, f"{HELLO}\n\n{AGAIN}\n", bundle, "--state", state) == 0
    out, err = capsys.readouterr()
    assert out == "".join(answer + "\n" for answer in answers(bundle, state, HELLO, AGAIN))
    assert "Answering: state" in err


def test_adapters_are_switched_and_the_conversation_begins_again(
    bundle: Path,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, kind in (("mine", "peft"), ("mlx", "mlx")):
        Bundle.open(bundle).export_adapter(tmp_path / name, state=state, format=kind)
    lines = ["/adapter off", HELLO, "/reset", "/adapter on", HELLO, "/reset", "/adapter other"]
    lines += [HELLO, "/quit", HELLO]
    options = ["--adapter", tmp_path / "mine", "--adapter", f"other={tmp_path / 'mlx'}"]
    assert talk(monkeypatch, "\n".join(lines), bundle, *options, "--json") == 0
    out, err = capsys.readouterr()
    said = [json.loads(line) for line in out.splitlines()]
    ((plain,), (trained,)) = answers(bundle, None, HELLO), answers(bundle, state, HELLO)
    assert plain != trained
    assert [one["text"] for one in said] == [plain, trained, trained]
    assert [one["adapter"] for one in said] == [None, "mine", "other"]
    assert "Adapters: mine, other." in err


def test_lines_that_cannot_be_done_leave_the_conversation(
    bundle: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [HELLO, "/adaptor off", "/adapter nobody", "word " * 2000, "/help", AGAIN]
    assert talk(monkeypatch, "\n".join(lines), bundle, "--state", state) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == "\n".join(answers(bundle, state, HELLO, AGAIN)).splitlines()
    for part in ("Did you mean '/adapter'?", "no such adapter", "Type /reset", "/adapter NAME"):
        assert part in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "part", "code"),
    [
        (["--state", "nowhere"], "nowhere", 1),
        (["--adapter", "nowhere"], "nowhere", 1),
        (["--adapter", "off=x"], "means something else", 2),
        (["--adapter", "a=x", "--adapter", "a=y"], "again", 2),
    ],
)
def test_what_cannot_be_begun(
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    part: str,
    code: int,
) -> None:
    assert talk(monkeypatch, HELLO, bundle, *arguments) == code
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert part in err


def test_a_model_without_a_template_does_not_chat(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Bundle.open(bundle)
    text = {**opened.manifest["text"], "no_chat": "a template of its own"}
    del text["chat"]
    without = dataclasses.replace(opened, manifest={**opened.manifest, "text": text})
    monkeypatch.setattr(Bundle, "open", lambda *_, **__: without)
    assert talk(monkeypatch, HELLO, bundle) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "a template of its own" in err


def test_answers_are_compared(
    bundle: Path, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.jsonl"
    opened = Bundle.open(bundle)
    prompts = ["The film", "It was", "One of the best"]
    said = [opened.generate(prompt, state=state, max_new_tokens=6).text for prompt in prompts]
    records: list[dict[str, Any]] = [
        {"prompt": prompt, "completion": text or "x"}
        for prompt, text in zip(prompts, said, strict=True)
    ]
    records[1]["completion"] = " zebra"
    records[2] |= {"completion": " zebra", "answers": ["zebra", said[2]]}
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    options = ["--data", str(data), "--state", str(state), "--generate", "--max-new-tokens", "6"]
    assert run(["eval", str(bundle), *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert 2 / 3 <= found["f1"] < 1
    assert run(["eval", str(bundle), *options[:4], "--json"]) == 0
    assert {**json.loads(capsys.readouterr().out)} == {
        key: found[key] for key in found if key not in ("exact_match", "f1")
    }
