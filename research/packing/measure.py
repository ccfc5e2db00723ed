"""``make bench-packing``: what ``pack=true`` does to rows, to the tokens that are learned, and to the time of each.

``python -m research.packing.measure PAGE`` trains SmolLM2-135M by MeBP for one pass over short and over long texts of
the Brown corpus, packed and not in turn, and renews the page's part between ``<!-- bench-packing -->`` and its end.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.support import page
from research.support.command import Clock, exit_status
from zoexport.api import Bundle
from zoexport.compiler.build import compile_bundle
from zoexport.data import corpus
from zoexport.tools.bench import conditions
from zoexport.tools.bench.output import markdown_table

MARK = "bench-packing"
MODEL = "smollm2-135m"
SEQ_LEN = 256
SETTINGS = {"lora.target_modules": "all-linear", "max_length": str(SEQ_LEN), "generate": False}
TEXTS = {25: 48, 600: 4}
"""Texts by their words."""
TIMES = 3
"""Passes of each kind, in turn."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One pass over texts of ``words`` words each: rows, tokens that are learned, and the steps' seconds."""

    words: int
    pack: bool
    texts: int
    rows: int
    tokens: int
    seconds: float


def passed(bundle: Path, data: Path, words: int, pack: bool, folder: Path) -> Pass:
    """Train on each row once, in a new state under ``folder``."""
    tokens = folder / "tokens.jsonl"
    rows = Bundle.open(bundle).write_tokens(data, tokens, pack=pack)["examples"]
    learned = 0
    for line in tokens.read_text("utf-8").splitlines():
        (row,) = json.loads(line)["candidates"]
        learned += sum(label >= 0 for label in row["labels"])
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as state:
        Bundle.open(bundle).train(
            data,
            state=Path(state) / "state",
            steps=rows,
            settings={"pack": pack},
            progress=lambda step: seconds.append(step.seconds),
        )
    texts = len(data.read_text("utf-8").splitlines())
    return Pass(words, pack, texts, rows, learned, sum(seconds))


def measure(folder: Path, clock: Clock) -> list[Pass]:
    """Every pass, those to be compared in turn."""
    bundle = compile_bundle(
        MODEL,
        method="mebp",
        target="host",
        output=folder / "bundle",
        settings=SETTINGS,
        recipe=None,
        force=False,
        progress=clock,
    )
    found = []
    for words, count in TEXTS.items():
        data = folder / f"texts-{words}.jsonl"
        with corpus.rows(words).train.open(encoding="utf-8") as lines:
            data.write_text("".join(itertools.islice(lines, count)), "utf-8")
        for _ in range(TIMES):
            for pack in (False, True):
                found.append(passed(Path(bundle["bundle"]), data, words, pack, folder))
                clock(f"{found[-1]}", None)
    return found


def table(found: Sequence[Pass]) -> str:
    """Passes as Markdown, with what they depend on."""
    rows: list[list[Any]] = []
    for words, pack in itertools.product(TEXTS, (False, True)):
        alike = [one for one in found if (one.words, one.pack) == (words, pack)]
        one = alike[0]
        each = statistics.median(run.seconds for run in alike) / one.tokens
        rows.append(
            [f"{one.texts} of {words} words", pack, one.rows, one.tokens, f"{1e3 * each:.2f} ms"]
        )
    header = ["texts", "`pack`", "rows", "tokens learned", "a token"]
    return "\n".join(
        [
            markdown_table(header, rows),
            "",
            f"SmolLM2-135M, `mebp`, `max_length` {SEQ_LEN}, `batch_size` 1, int4, LoRA of rank 16, all linear layers; "
            f"one pass over the rows, the median of {TIMES}, packed and not in turn. `host` on "
            f"{conditions.machine()['cpu']}, {datetime.date.today():%Y-%m-%d}.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args(arguments).page
    page.marked(path, MARK)

    def renew(clock: Clock) -> None:
        with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
            page.publish(path, MARK, table(measure(Path(folder), clock)))

    return exit_status(renew)


if __name__ == "__main__":
    sys.exit(main())
