"""Seeds of the fuzz targets: real files, as the tests and the session write them.

    python -m tests.fuzz.seeds FOLDER

writes FOLDER/<target>/<name>.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import bundles, grid_bundles, split_bundles, stacked_bundles, tokenizers
from tests.support.sessions import make_dataset, open_session, write_examples

#: Of fuzz_row_program: tensors, their sizes, constants, then the code, whose numbers are 16 larger.
ROW_PROGRAMS = {
    "scale": (1, 6, 1, 1, [1, 6, 1, 1, 0, 1, 2, 1, 1, 1, 1, 2, 1, 0, -1, 0]),
    "softmax": (1, 12, 1, 0, [1, 3, 1, 4, 0, 4, 5, 4, 1, 4, 4, 1, 1, 3, 31, 1, 0, 0, 0]),
}


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
        manifest = (work / name / "manifest.json").read_bytes()
        keep("manifest", name, manifest)
        keep("safetensors", name, (work / name / "adapter.safetensors").read_bytes())
    keep("canonical", "manifest", (work / "prge" / "manifest.json").read_bytes())
    for number, text in enumerate(
        (b'{"b":[1,-2.50e-3,true,null,"\\u00e9\\n"],"a":{"x":{}}}', b"[]", b"1e5")
    ):
        keep("canonical", f"text-{number}", text)
    examples = bundles.text_examples() + bundles.choice_examples()
    with make_dataset(examples) as dataset, open_session(work / "prge", work / "state") as session:
        session.train(dataset, 12)
        session.save()
    log = (work / "state" / "trajectory.log").read_bytes()
    keep("log", "whole", b"\x00" + log)
    keep("log", "signed", b"\x01" + log)
    for path in sorted((work / "state").glob("*.safetensors")):
        keep("safetensors", path.stem, path.read_bytes())
    lines = write_examples(work / "lines.jsonl", examples).read_bytes()
    for number, options in enumerate(
        (b"\x01\x03\x00\x10", b"\x02\x05\x01\x1f", b"\x00\x00\x00\x3b")
    ):
        keep("dataset", f"lines-{number}", options + lines)
    for kind in ("qwen2", "mistral", "metaspace", "phi3", "falcon"):
        content = tokenizers.tokenizer(kind).backend_tokenizer.to_str()
        keep("tokenizer", kind, small(json.loads(content)))
    for name, (tensors, elements, times, constants, code) in ROW_PROGRAMS.items():
        numbers = bytes([tensors, elements, times, constants, *(number + 16 for number in code)])
        keep("row_program", name, numbers)


def small(tokenizer: dict[str, Any]) -> bytes:
    """A tokenizer.json with few tokens, so that what is altered is the rest of it."""
    model = tokenizer["model"]
    texts = [*"aehlotx ▁Ġ", *(one["content"] for one in tokenizer["added_tokens"]), "▁t", "he"]
    known = dict.fromkeys([*texts, model["unk_token"] or "a"])
    numbers = {text: number for number, text in enumerate(known)}
    model["vocab"], model["merges"] = numbers, [["▁", "t"], ["h", "e"]]
    for one in tokenizer["added_tokens"]:
        one["id"] = numbers[one["content"]]
    return json.dumps(tokenizer, ensure_ascii=False).encode()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
