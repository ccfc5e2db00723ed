"""Seeds of the fuzz targets: real files, as the tests and the session write them.

    python -m tests.fuzz.seeds FOLDER

writes FOLDER/<target>/<name>.
"""

from __future__ import annotations

import base64
import json
import math
import sys
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz import operator_calls, python_seeds
from tests.support import (
    bundles,
    grid_bundles,
    linear_program,
    split_bundles,
    stacked_bundles,
    tokenizers,
)
from tests.support.chat_templates import TEMPLATES
from tests.support.sessions import make_dataset, open_session, write_examples
from zoexport.session import Bundle, Session
from zoexport.tools.packing import pack

#: Bundles that the targets open, as the writers of the tests made them.
BUNDLES = Path(__file__).parent / "bundles"
#: Files that the tests of C++ read too.
DATA = Path(__file__).parents[1] / "data"
#: Of fuzz_state, in the order of their numbers.
STATE_FILES = (
    "state.json",
    "run.json",
    "trajectory.log",
    "initial.safetensors",
    "snapshot-0.safetensors",
    "snapshot-3.safetensors",
    "snapshot-4.safetensors",
    "snapshot-5.safetensors",
    "work.bin",
)

#: Of fuzz_row_program: tensors, their sizes, constants, then the code, whose numbers are 16 larger.
ROW_PROGRAMS = {
    "scale": (1, 6, 1, 1, [1, 6, 1, 1, 0, 1, 2, 1, 1, 1, 1, 2, 1, 0, -1, 0]),
    "softmax": (1, 12, 1, 0, [1, 3, 1, 4, 0, 4, 5, 4, 1, 4, 4, 1, 1, 3, 31, 1, 0, 0, 0]),
}


#: Of fuzz_abi: verbs, each with a number for its error, and what they are given.
_OPEN = bytes([0, 0, 0, 0, 0, 16, 0, 0xFF, 0])
_ADD = bytes([11, 0, 0, 1, 3, 0, 17, 18, 19, 3, 0, 17, 18, 19, 16, 0])
_RUN = bytes([13, 0, 1, 0, 16, 0]) + bytes([14, 0, 21]) + bytes([15, 0, 0])
_READ = bytes([16, 0, 0, 0, 0, 1]) + bytes([21, 0, 0, 0, 16]) + bytes([23, 0, 2, 0, 0, 9, 0, 0])
VERBS = {
    "memory": _OPEN + _ADD + _RUN + _READ,
    "state": _OPEN + bytes([6, 0, 16, 1, 0, 0]) + _ADD + _RUN + bytes([23, 0, 8, 0, 200, 0, 0, 0]),
    "first": _OPEN[:-1] + b"\x01" + _ADD + _RUN,
    "structs": _OPEN
    + bytes([2, 0, 0xC0, 88, 3, 0, 0, 16, 5, 0, 0, 16, 9, 0, 0, 10, 0, 0, 1, 8, 1]),
    # One layer of 2 inputs, rank 1 and 2 outputs, for llama.cpp.
    "adapter": bytes([0xF1, 0, 1, 2, 1, 2, 0, 0, 17, 18, 0, 19, 20, 1, 0, 1, 17, 16])
    + bytes([0, 1, 1, 1, 1, 18, 0, 3, *bytes(12), 0]),
}

RECORDS = b"""\xef\xbb\xbf{"text": "a \\u00e9"}

{"prompt": "a ", "completion": "b", "choices": ["b", "c"]}
{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "id": 7}
{"prompt": "a", "chosen": "b", "rejected": "c", "answers": ["d"]}
"""


def _on_one_line(path: Path) -> bytes:
    """A JSON file without the line breaks that people read it by."""
    return json.dumps(json.loads(path.read_bytes())).encode()


def write(folder: Path) -> None:
    """Write all seeds."""
    with tempfile.TemporaryDirectory() as work:
        _write(Path(work), folder)


def _write(work: Path, folder: Path) -> None:
    def keep(target: str, name: str, content: bytes) -> None:
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)

    makers: dict[str, Callable[[Path], object]] = {
        "prge": bundles.write_bundle,
        "mezo": lambda path: bundles.write_bundle(path, method="mezo"),
        "split": split_bundles.write_bundle,
        "stacked": stacked_bundles.write_bundle,
        "grid": grid_bundles.write_bundle,
    }
    for name, make in makers.items():
        make(work / name)
        keep("manifest", name, _on_one_line(work / name / "manifest.json"))
        keep("safetensors", name, (work / name / "adapter.safetensors").read_bytes())
    pack(Bundle.open(work / "prge"), work / "packed", force=True, progress=lambda *_: None)
    keep("packed", "prge", (work / "packed").read_bytes())
    keep("canonical", "manifest", _on_one_line(work / "prge" / "manifest.json"))
    for number, text in enumerate(
        (b'{"b":[1,-2.50e-3,true,null,"\\u00e9\\n"],"a":{"x":{}}}', b"[]", b"1e5")
    ):
        keep("canonical", f"text-{number}", text)
    examples = bundles.text_examples() + bundles.choice_examples()
    with make_dataset(examples) as dataset, open_session(work / "prge", work / "state") as session:
        session.train(dataset, 12)
        session.save()
    log = (work / "state" / "trajectory.log").read_bytes()
    sources = json.loads((Path(__file__).parents[1] / "data/template_sources.json").read_text())
    for number, source in enumerate((*TEMPLATES.values(), *sources)):
        keep("template", f"source-{number}", source.encode())
    keep("log", "whole", b"\x00" + log)
    keep("log", "signed", b"\x01" + log)
    for path in sorted((work / "state").glob("*.safetensors")):
        keep("safetensors", path.stem, path.read_bytes())
    lines = write_examples(work / "lines.jsonl", examples).read_bytes()
    for number, options in enumerate(
        (b"\x01\x03\x00\x10", b"\x02\x05\x01\x1f", b"\x00\x00\x00\x3b")
    ):
        keep("dataset", f"lines-{number}", options + lines)
    keep("dataset", "records", bytes(4) + RECORDS)
    for name, content in states(work / "states").items():
        keep("state", name, content)
    for name, content in operator_calls.calls().items():
        keep("operators", name, content)
    for name, content in VERBS.items():
        keep("abi", name, content)
    keep("program", "linear", linear_program.compiled())
    keep("vulkan_program", "calls", (DATA / "vulkan_program.json").read_bytes())
    keep("vulkan_program", "parts", (DATA / "vulkan_parts.json").read_bytes())
    of_python = python_seeds.seeds(work)
    for target, made in of_python.items():
        for name, content in made.items():
            keep(target, name, content)
    keep("peft", "adapter", of_python["adapters"]["peft"][1:])
    for kind in ("qwen2", "mistral", "metaspace", "phi3", "falcon", "bert-uncased", "t5", "albert"):
        content = tokenizers.tokenizer(kind).backend_tokenizer.to_str()
        keep("tokenizer", kind, small(json.loads(content)))
    for name, (tensors, elements, times, constants, code) in ROW_PROGRAMS.items():
        numbers = bytes([tensors, elements, times, constants, *(number + 16 for number in code)])
        keep("row_program", name, numbers)


def small(tokenizer: dict[str, Any]) -> bytes:
    """A tokenizer.json with few tokens, so that what is altered is the rest of it."""
    model = tokenizer["model"]
    texts = [*"aehlotx ▁Ġ", *(one["content"] for one in tokenizer["added_tokens"]), "▁t", "he"]
    known = dict.fromkeys([*texts, model.get("unk_token") or "a", "##e"])
    numbers = {text: number for number, text in enumerate(known)}
    model["vocab"] = numbers
    if model["type"] == "BPE":
        model["merges"] = [["▁", "t"], ["h", "e"]]
    elif model["type"] == "Unigram":
        model["vocab"] = [[text, -number / 8] for text, number in numbers.items()]
    for one in tokenizer["added_tokens"]:
        one["id"] = numbers[one["content"]]
    steps = tokenizer["normalizer"] or {}
    for step in steps.get("normalizers", [steps]):
        if step.get("type") == "Precompiled":
            step["precompiled_charsmap"] = base64.b64encode(tokenizers.small_charsmap()).decode()
    return json.dumps(tokenizer, ensure_ascii=False).encode()


def states(work: Path) -> dict[str, bytes]:
    """States of the bundles, each read and trained, with its own checksums and with ones that are made right."""
    found = {}
    kinds = {"zeroth": (0, bundles.LinearModel), "first": (1, split_bundles.SplitModel)}
    for name, (kind, engine) in kinds.items():
        for imported in (False, True):
            state = work / f"{name}-{imported}"
            with (
                make_dataset(bundles.text_examples()) as dataset,
                Session.open(BUNDLES / name, engine=engine()) as session,
            ):
                session.attach(state)
                if imported:
                    slot = session.slots()[0]
                    session.write_slot(slot.name, array("f", [0.25] * math.prod(slot.shape)))
                session.train(dataset, 3)
                session.save()
                session.train(dataset, 5)
                files = packed(state)
            for way in (0, 2, 4, 6, 0x1E):
                found[f"{state.name}-{way}"] = bytes([kind | way]) + files
    return found


def packed(state: Path) -> bytes:
    """The files of a state, one after another."""
    content = b""
    for number, name in enumerate(STATE_FILES):
        path = state / name
        if path.exists():
            file = path.read_bytes()
            content += bytes([number]) + len(file).to_bytes(2, "big") + file
    return content


if __name__ == "__main__":
    write(Path(sys.argv[1]))
