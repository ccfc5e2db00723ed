"""Data files for the hosts' apps, with what Python makes of them: examples, and states of ``zoexport train``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.hosts import run
from tests.support.text_checks import ends_of
from tests.support.transformers_examples import tokenize_file
from zoexport.core.children import python
from zoexport.data.examples import write_examples
from zoexport.session import Bundle, Dataset
from zoexport.session.data import Tokenizer
from zoexport.tools.packing import pack

STEPS = 250
"""Enough for two snapshots and for being killed between them."""

_PROMPT = "The film by the sea was warm and funny, and the jokes were not bad. It was"
DATA: list[dict[str, Any]] = [
    {"prompt": _PROMPT[: 8 * number], "completion": word, "choices": [" great", " terrible"]}
    for number in range(1, 5)
    for word in (" great", " terrible")
]
"""Both words after every prompt: nothing can be learned by heart, so no loss comes to be ten times the first ones."""
MIXED: list[dict[str, Any]] = [
    {"text": "A dull, slow and empty picture that never finds its way. It was terrible"},
    {"text": "café 🦊", "id": 7},
    {"text": "a text that is longer than a row, cut at its end " * 20},
    {"prompt": "", "completion": "alone"},
    {"prompt": "a prompt too long, whose start is dropped " * 20, "completion": " yes"},
    {"prompt": "so", "completion": "a completion that is too long by itself " * 20},
    {"prompt": "dropped for the longest " * 9, "completion": "A", "choices": ["A", "several"]},
    {"prompt": "cafe", "completion": "e\u0301", "choices": ["\u00e9", "e\u0301"]},
    {
        "prompt": "Two friends",
        "completion": " travel through the mountains and learn what matters to them",
    },
    {"prompt": _PROMPT, "completion": " great"},
    {"prompt": _PROMPT, "chosen": " great", "rejected": " terrible, dull and slow"},
    {
        "prompt": [{"role": "user", "content": "How was it?"}],
        "chosen": [{"role": "assistant", "content": "Warm, and funny."}],
        "rejected": [{"role": "assistant", "content": "Slow."}],
    },
    {
        "messages": [
            {"role": "user", "content": "How was it?"},
            {"role": "assistant", "content": "Warm, and funny."},
        ]
    },
    *DATA,
]
_SAID = ("How was it?", "Warm, and funny. café 🦊", 'And the "sea"?\n', " Blue.")
TYPED: list[dict[str, Any]] = [
    {"prompt": "It was", "completion": " warm"},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *(
                {"role": ("user", "assistant")[number % 2], "content": text}
                for number, text in enumerate(_SAID)
            ),
        ]
    },
    {"messages": [{"role": "user", "content": _SAID[0]}, {"role": "assistant", "content": "so"}]},
]
"""What the hosts' tests type, too."""


def make_case(folder: Path, bundles: Path) -> Path:
    """Write the case below ``folder`` for the bundles ``BUNDLES/prge/bundle`` and ``BUNDLES/mebp/bundle``.

    ``data.jsonl`` has choices in every example, ``mixed.jsonl`` all shapes, ``typed.jsonl`` is
    :data:`TYPED`. ``<name>.examples.jsonl`` has the examples, ``mixed.packed`` the digest of mixed.jsonl's rows with
    ``pack=true`` (tests/unit/session/test_packing.py says that they are right), ``<method>`` is the state of
    ``zoexport train``, and ``prge.zobundle`` the packed bundle.
    """
    folder.mkdir(parents=True)
    bundle = bundles / "prge" / "bundle"
    manifest = json.loads((bundle / "manifest.json").read_text())
    max_length = manifest["settings"]["max_length"]
    for name, records in (("data", DATA), ("mixed", MIXED), ("typed", TYPED)):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        tokenized = tokenize_file(path, bundle, max_length, ends=ends_of(bundle))
        write_examples(tokenized.examples, folder / f"{name}.examples.jsonl")
        (folder / f"{name}.shortened").write_text(str(tokenized.shortened))
    with Dataset() as dataset, Tokenizer.open(bundle) as tokenizer:
        dataset.read(folder / "mixed.jsonl", tokenizer, pack=True)
        (folder / "mixed.packed").write_text(dataset.digest())
    pack(Bundle.open(bundle), folder / "prge.zobundle", force=False, progress=lambda *_: None)
    for method in ("prge", "mebp"):
        command, environment = python("zoexport", "train", bundles / method / "bundle")
        command += ["--data", str(folder / "data.jsonl"), "--state", str(folder / method)]
        run(*command, "--steps", STEPS, "--json", environment=environment)
    return folder


def check_state(state: Path, expected: Path) -> None:
    """A state that another host left is that of ``zoexport train``, to the last byte."""
    names = sorted(path.name for path in expected.iterdir())
    assert sorted(path.name for path in state.iterdir()) == names
    for name in names:
        if name != "lock":  # that holds the number of its last process
            # The header of work.bin names the file itself, and the system's last start.
            first = 4096 if name == "work.bin" else 0
            found, wanted = ((folder / name).read_bytes()[first:] for folder in (state, expected))
            if name == "run.json":
                found, wanted = (_of_tokens(content) for content in (found, wanted))
            assert found == wanted, f"{state / name}"


def _of_tokens(content: bytes) -> bytes:
    """run.json as it is of examples that came as tokens, of which nobody knows what they were."""
    run = json.loads(content)
    del run["crc32"]
    run["data"].pop("conversations", None)
    return json.dumps(run).encode()
