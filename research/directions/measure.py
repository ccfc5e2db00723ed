"""What a frozen A leaves of a weight's gradient: drawn at random, or along the directions of activations.

``python -m research.directions.measure PAGE`` measures SmolLM2's A of ``lora.init_weights=activations``, from prose and
from sentences, and gradients on held-out ones, and renews the page's part between ``<!-- report-directions -->`` and
its end.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from research.support.command import Clock, renew_part
from zoexport import models
from zoexport.calibration import ROWS, calibration_rows
from zoexport.compiler.directions import measure
from zoexport.core import rng
from zoexport.data import corpus, samples
from zoexport.data.examples import Candidate, read_examples
from zoexport.data.text_entry import tokenizer_of
from zoexport.tools.bench.output import markdown_table
from zoexport.tools.gradients import sequence_loss

MARK = "report-directions"
MODEL = "smollm2-135m"
SEQ_LEN = 64
WORDS = 256
"""Words of a row of prose, as compile has them; what exceeds SEQ_LEN is cut off."""
RANK, RANKS = 16, (4, 16, 64)
BATCH, BATCHES = 4, 16
KINDS = {
    "q, k, v": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate, up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
    "all": ("",),
}
"""Layers by the ends of their paths."""

Bases = Mapping[str, Tensor]
"""By layer, orthonormal columns (in, rank), whose first span the spaces of smaller ranks."""
Squares = dict[tuple[str, int], dict[str, float]]
"""By way and rank (:data:`WHOLE`: the whole gradient), and by layer: squared norms, added up over batches."""
WHOLE = ("", 0)


def drawn(loaded: Any, modules: Sequence[str], rank: int) -> Bases:
    """Spaces of random matrices."""
    found = {}
    for number, name in enumerate(modules):
        size = loaded.model.get_submodule(name).in_features
        noise = torch.from_numpy(rng.normals(0, number, 0, 0, size * rank)).view(size, rank)
        found[name] = torch.linalg.qr(noise).Q
    return found


def measured(
    loaded: Any, modules: Sequence[str], rank: int, rows: Sequence[Sequence[int]]
) -> Bases:
    """Those of ``lora.init_weights=activations``, from some rows."""
    found = measure(loaded, dict.fromkeys(modules, rank), rows, seed=0)
    return {name: a / a.norm(dim=0) for name, a in found.items()}


def squares(
    loaded: Any, bases: Mapping[str, Bases], batches: Sequence[Sequence[Candidate]]
) -> Squares:
    """||G||^2 and ||G V||^2 of each layer's gradient G (out, in) of a batch's loss, added up over ``batches``.

    Args:
        bases: by way, of the largest of :data:`RANKS`.
    """
    names = list(next(iter(bases.values())))
    weights = [loaded.model.get_submodule(name).weight for name in names]
    keys = [WHOLE, *itertools.product(bases, RANKS)]
    found: Squares = {key: dict.fromkeys(names, 0.0) for key in keys}
    for weight in weights:
        weight.requires_grad_(True)
    try:
        for batch in batches:
            for sequence in batch:
                (sequence_loss(loaded.model, sequence) / len(batch)).backward()
            for name, weight in zip(names, weights, strict=True):
                gradient, weight.grad = weight.grad, None
                found[WHOLE][name] += float(gradient.square().sum(dtype=torch.float64))
                for way, basis in bases.items():
                    # Of each direction, the first of which are those of smaller ranks.
                    kept = (gradient @ basis[name]).double().square().sum(0)
                    for rank in RANKS:
                        found[way, rank][name] += float(kept[:rank].sum())
    finally:
        for weight in weights:
            weight.requires_grad_(False)
    return found


def share(found: Squares, way: str, rank: int, ends: tuple[str, ...]) -> float:
    """Of the squared norm of the gradients of some layers together, what a way's spaces have."""
    names = [name for name in found[WHOLE] if name.endswith(ends)]
    return sum(found[way, rank][name] for name in names) / sum(found[WHOLE][name] for name in names)


def held_out(loaded: Any, file: Path) -> list[list[Candidate]]:
    """The first batches of a file: sentences with the right choice, or texts."""
    with tokenizer_of(loaded, SEQ_LEN) as tokenizer:
        examples = read_examples(tokenizer, file, most=BATCH * BATCHES)
    found = [example.candidates[example.target] for example in examples]
    return [found[start : start + BATCH] for start in range(0, len(found), BATCH)]


def report(found: Mapping[str, Squares], ways: Sequence[str]) -> str:
    """The page's marked part: a row for each held-out text, rank and kind of layer.

    Args:
        found: by held-out text. ways: the first is that of random matrices.
    """
    rows: list[list[Any]] = []
    for text, squares in found.items():
        for rank in RANKS:
            kinds = KINDS if rank == RANK else {"all": KINDS["all"]}
            for kind, ends in kinds.items():
                shares = [share(squares, way, rank, ends) for way in ways]
                gains = [f"{(one / shares[0]) ** 0.5:.1f}" for one in shares[1:]]
                rows.append([text, rank, kind, *(f"{one:.1%}" for one in shares), *gains])
    gained = [f"cosine, {way}" for way in ways[1:]]
    return markdown_table(["gradients of", "rank", "layers", *ways, *gained], rows)


def compared(model: str, clock: Clock) -> str:
    """The page's marked part for a model.

    Raises:
        ZoExportError: the model or a text cannot be had.
    """
    loaded = models.load(models.resolve(model))
    modules = models.adapter_targets(loaded.model, "all-linear")
    prose, sentences = corpus.rows(WORDS), samples.sentences()
    texts = {"sentences": sentences.test, "prose": prose.test}
    calibrated = {
        "of prose": calibration_rows(loaded, SEQ_LEN, prose.train),
        "of sentences": calibration_rows(loaded, SEQ_LEN, sentences.train),
    }
    clock("directions", None)
    bases = {"random": drawn(loaded, modules, max(RANKS))}
    for way, rows in calibrated.items():
        bases[way] = measured(loaded, modules, max(RANKS), rows)
    found = {}
    for text, file in texts.items():
        clock(f"gradients of {text}", None)
        found[text] = squares(loaded, bases, held_out(loaded, file))
    tokens = {way: sum(map(len, rows)) for way, rows in calibrated.items()}
    return "\n".join(
        [
            report(found, ["random", *calibrated]),
            "",
            "- `python -m research.directions.measure docs/results/learning.md`",
            f"- {loaded.name}, fp32 weights; {BATCHES} batches of {BATCH} held-out texts of at most {SEQ_LEN} tokens, "
            "none of them among those that were calibrated on; sentences with their completion's tokens as labels",
            f"- calibrated on {ROWS} rows: of prose (the Brown corpus) {tokens['of prose']} tokens, of sentences "
            f"{tokens['of sentences']}",
            f"- torch {torch.__version__}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_part(arguments, "What a frozen A leaves of gradients.", MARK, MODEL, compared)


if __name__ == "__main__":
    sys.exit(main())
