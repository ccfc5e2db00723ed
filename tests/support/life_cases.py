"""The whole life of a fine-tuning on a host: a packed, signed bundle, data, what the command line makes of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.support.compiled import Compiler
from tests.support.hosts import run
from tests.support.signed import make_keys, sign
from zoexport.api import Bundle
from zoexport.core import manifest
from zoexport.core.children import python
from zoexport.tools.packing import pack

STEPS = 20
PROMPT = "The film by the sea was"
QUESTIONS = ("How was the film?", "And the sea?")
TOKENS = 12
DATA: list[dict[str, Any]] = [
    {"prompt": f"The film number {number} was", "completion": word, "choices": [" great", " bad"]}
    for number in range(3)
    for word in (" great", " bad")
]
#: Of the other answers: the more certain, the worse, from some step on.
HELD_OUT: list[dict[str, Any]] = [
    {"prompt": f"The play number {number} was", "completion": word, "choices": [" great", " bad"]}
    for number, word in enumerate((" great", " bad", " bad"))
]


def make_case(folder: Path) -> Path:
    """Write the case into ``folder``, and give it.

    ``life.zobundle`` is signed by the key of ``life.pub``, ``plain.zobundle`` by none, ``prompts.zobundle`` is
    signed and its model has no chat template; ``life.jsonl`` is the data, ``held-out.jsonl`` what is held out of it.
    ``expected.json`` has what the command line says: ``before`` and ``after`` training ``state`` (loss and accuracy of
    what is held out, after of the best step), ``best`` (that step), ``trained`` and ``untrained`` (texts), and the
    ``answers`` to ``questions`` in turn, of both. ``peft`` and ``adapter.gguf`` are the adapter of the best step.
    """
    folder.mkdir(parents=True)
    keys = make_keys(folder / "keys")
    compiled = Compiler().bundle("llama", "mebp", generate=True, weights="int4")
    pack(Bundle.open(compiled), folder / "plain.zobundle", force=False, progress=lambda *_: None)
    bundle = folder / "bundle"
    verb("unpack", folder / "plain.zobundle", "-o", bundle)
    sign(bundle, keys.secret)
    pack(Bundle.open(bundle), folder / "life.zobundle", force=False, progress=lambda *_: None)
    (folder / "life.pub").write_bytes(keys.pub.read_bytes())
    prompts = Path(shutil.copytree(bundle, folder / "prompts"))
    content = Bundle.open(bundle).manifest
    del content["text"]["chat"]
    content["text"]["no_chat"] = "a model whose tokenizer has no chat template"
    content["bundle_id"] = manifest.bundle_id(content)
    (prompts / manifest.FILE).write_text(json.dumps(content))
    sign(prompts, keys.secret)
    pack(Bundle.open(prompts), folder / "prompts.zobundle", force=False, progress=lambda *_: None)
    data = folder / "life.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in DATA))
    held_out = folder / "held-out.jsonl"
    held_out.write_text("".join(json.dumps(record) + "\n" for record in HELD_OUT))
    state = ("--state", folder / "state")
    expected: dict[str, Any] = {"steps": STEPS, "prompt": PROMPT, "tokens": TOKENS}
    expected["before"] = verb("eval", bundle, "--data", held_out)
    validation = ("--eval-data", held_out)
    trained = verb("train", bundle, "--data", data, *state, "--steps", STEPS, *validation)
    expected["best"] = trained["best_step"]
    expected["after"] = verb("eval", bundle, "--data", held_out, *state)
    # Hosts continue texts as they are.
    ask = ("generate", bundle, "--prompt", PROMPT, "--no-chat-template", "--max-new-tokens", TOKENS)
    # Half a character at the end would be another one with the tokens that follow.
    expected["untrained"] = verb(*ask)["text"].rstrip("\N{REPLACEMENT CHARACTER}")
    expected["trained"] = verb(*ask, *state)["text"].rstrip("\N{REPLACEMENT CHARACTER}")
    expected["questions"] = QUESTIONS
    expected["answers"] = {
        "trained": answers(bundle, folder / "state"),
        "untrained": answers(bundle, None),
    }
    for kind, name in (("peft", "peft"), ("gguf", "adapter.gguf")):
        verb("adapter", "export", bundle, *state, "--format", kind, "-o", folder / name)
    (folder / "expected.json").write_text(json.dumps(expected))
    return folder


def answers(bundle: Path, state: Path | None) -> list[str]:
    """The answers to the questions, each after those before."""
    opened, messages = Bundle.open(bundle), []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = opened.generate(messages, state=state, max_new_tokens=TOKENS).text or ""
        messages.append({"role": "assistant", "content": answer})
    return [message["content"] for message in messages[1::2]]


def verb(*arguments: object) -> dict[str, Any]:
    """What a verb of the command line says with ``--json``."""
    command, environment = python("zoexport", *arguments, "--json")
    output = run(*command, environment=environment)
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer


def check(case: Path, output: Path) -> None:
    """What a host left in ``output`` (``state``, ``peft``, ``adapter.gguf``) is what the command line made.

    A run that was paused has snapshots that an undisturbed one has not: the log tells all steps, the adapter their end.
    """
    for name in (
        *("state/trajectory.log", "state/evaluations.json", "adapter.gguf"),
        *("peft/adapter_config.json", "peft/adapter_model.safetensors"),
    ):
        assert (output / name).read_bytes() == (case / name).read_bytes(), name
