"""What the tests of the Kotlin and Swift hosts generate: a bundle, adapters, and the texts that Python's host has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from tests.support.chat_templates import said
from tests.support.compiled import Compiler
from zoexport.api import Bundle
from zoexport.session import Sampling, Session

_CONVERSATION = [("system", "Be brief."), ("user", "Is the film a good one? ▶ 🦊")]
CASES: list[dict[str, Any]] = [
    {"prompt": "The film is a warm and café"},
    {"prompt": "The film is a warm and café", "adapter": "a"},
    {"prompt": "The film is a warm and café", "adapter": "b"},
    {"prompt": "naïve 🦊", "adapter": "a", "sampling": {"temperature": 1.5, "seed": 2**63 + 5}},
    {
        "prompt": "It was",
        "adapter": "b",
        "sampling": {
            "temperature": 0.9,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.001,
            "repetition_penalty": 1.2,
            "seed": 7,
        },
    },
    {"messages": _CONVERSATION, "adapter": "a"},
    {"messages": _CONVERSATION},
]
TOKENS = 24


def make_case(folder: Path) -> Path:
    """Write into ``folder`` what every host makes again.

    Returns:
        ``folder``: ``bundle``, the adapters ``a`` and ``b``, texts in ``cases.json``, and the bundle's own adapter as
        ``exported`` (PEFT's form) and ``exported.gguf`` (Q8_0).
    """
    compiled = Compiler().bundle("llama", "mebp", generate=True, lora__target_modules="all-linear")
    bundle = Path(shutil.copytree(compiled, folder / "bundle"))
    for seed, name in enumerate("ab"):
        _write_adapter(bundle, folder, name, seed)
    cases = []
    with Session.open(bundle) as session:
        for name in "ab":
            session.load_adapter(name, folder / name)
        session.export_adapter(folder / "exported")
        session.export_adapter(folder / "exported.gguf", "gguf", outtype="q8_0")
        for case in CASES:
            cases += [_made(session, case), _made(session, case, stop=True)]
    assert len({case["text"] for case in cases}) > len(CASES)
    (folder / "cases.json").write_text(json.dumps(cases))
    return folder


def _made(session: Session, case: dict[str, Any], *, stop: bool = False) -> dict[str, Any]:
    """A case with all of its options, and what comes of it; ``stop``: up to a string from the middle of that."""
    sampling = Sampling(**case.get("sampling", {}))
    stops: list[str] = []
    options: dict[str, Any] = {
        "messages": [said(*one) for one in case.get("messages", [])],
        "adapter": case.get("adapter"),
        "max_new_tokens": TOKENS,
        "sampling": sampling,
    }
    if stop:
        text = session.generate(case.get("prompt", ()), **options).text or ""
        stops = ["\N{SNOWMAN}", text[len(text) // 2 :][:3]]
    made = session.generate(case.get("prompt", ()), stop=stops, **options)
    return {
        "prompt": case.get("prompt"),
        "messages": [list(message) for message in case.get("messages", [])],
        "adapter": case.get("adapter"),
        "max_new_tokens": TOKENS,
        "stop": stops,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": str(sampling.seed),  # beyond what JSON's readers take for a whole number
        "text": made.text,
        "tokens": list(made.tokens),
        "prompt_tokens": made.prompt_tokens,
        "reason": made.stop,
    }


def _write_adapter(bundle: Path, folder: Path, name: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with Session.open(bundle) as session:
        session.attach(folder / f"state-{name}")
        for slot in session.slots():
            session.write_slot(
                slot.name, (0.2 * torch.randn(slot.shape, generator=generator)).numpy()
            )
        session.save()
    Bundle.open(bundle).export_adapter(folder / name, state=folder / f"state-{name}")
