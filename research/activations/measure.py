"""What rounding activations costs: errors of linear layers' inputs, and the loss, under each way to choose grids.

``python -m research.activations.measure PAGE`` calibrates SmolLM2's layers on some rows of the Brown corpus,
measures on held-out ones, and renews the page's part between ``<!-- report-activations -->`` and its end.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812, as everyone calls it
from torch import Tensor

from research.support.command import renew_part
from zoexport import calibration, models
from zoexport.core import activation_grids as grids
from zoexport.core.activation_grids import Format
from zoexport.data import corpus
from zoexport.tools.bench.output import markdown_table

MARK = "report-activations"
MODEL = "smollm2-135m"
SEQ_LEN = 128
RATIO = 0.01
"""The share of outliers that the paper calls normal (appendix B.3)."""
WAYS = ("int8", "int8, outliers", "fp8", "search int8, fp8", "search with outliers")
KINDS = {
    "q, k, v": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate, up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""Layers by the ends of their paths."""

Formats = Mapping[str, Mapping[str, Format]]
Errors = Mapping[str, Mapping[str, float]]


def ways(x: Tensor) -> dict[str, Format]:
    """The format of each of :data:`WAYS` for calibration inputs."""
    plain, apart = (grids.fit(x, outliers=ratio, search=False) for ratio in (0.0, RATIO))
    floats = grids.fp8(float(x.abs().max()))
    chosen = [grids.best(x, pair) for pair in ((plain, floats), (apart, floats))]
    return dict(zip(WAYS, (plain, apart, floats, *chosen), strict=True))


def calibrated(loaded: Any, modules: Sequence[str], rows: Sequence[Sequence[int]]) -> Formats:
    """By way and layer."""
    found: dict[str, dict[str, Format]] = {way: {} for way in WAYS}

    def look(name: str, _: Tensor, x: Tensor) -> None:
        for way, format in ways(x).items():
            found[way][name] = format

    calibration.watch(loaded, modules, rows, look)
    return found


def errors(loaded: Any, formats: Formats, rows: Sequence[Sequence[int]]) -> Errors:
    """By way and layer, the squared error of a layer's input over its square, both added up over ``rows``."""
    found: dict[str, dict[str, float]] = {way: {} for way in formats}

    def look(name: str, _: Tensor, x: Tensor) -> None:
        power = float(x.square().mean(dtype=torch.float64))
        for way, chosen in formats.items():
            found[way][name] = grids.squared_error(x, chosen[name]) / power

    calibration.watch(loaded, list(next(iter(formats.values()))), rows, look)
    return found


def loss(loaded: Any, formats: Mapping[str, Format], rows: Sequence[Sequence[int]]) -> float:
    """Mean cross-entropy of the rows' tokens under the model with rounded inputs, the mean over the rows."""
    with torch.no_grad(), calibration.rounding(loaded.model, formats):
        found = []
        for row in rows:
            tokens = torch.tensor([row])
            logits = loaded.model(input_ids=tokens, use_cache=False).logits[0, :-1]
            found.append(float(F.cross_entropy(logits, tokens[0, 1:])))
    return statistics.mean(found)


def report(formats: Formats, found: Errors, losses: Mapping[str, float]) -> str:
    """The page's marked part: a row a kind of layer, and one of the losses."""
    kinds = {kind: _of(found[WAYS[0]], ends) for kind, ends in KINDS.items()}
    kinds["all"] = list(found[WAYS[0]])
    rows: list[list[Any]] = []
    for kind, names in kinds.items():
        cells = []
        for way in WAYS:
            mean = 1e4 * statistics.mean(found[way][name] for name in names)
            floats = sum(formats[way][name].kind == grids.FP8 for name in names)
            chosen = f" ({floats} of {len(names)} fp8)" if way.startswith("search") else ""
            cells.append(f"{mean:.3g}{chosen}")
        rows.append([kind, *cells])
    rows.append(["held-out loss", *(f"{losses[way]:.3f}" for way in WAYS)])
    return markdown_table(["inputs of", *WAYS], rows)


def _of(names: Iterable[str], ends: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.endswith(ends)]


def measure(model: str) -> str:
    """The page's marked part for a model.

    Raises:
        ZoExportError: the model or the corpus cannot be had.
    """
    loaded = models.load(models.resolve(model))
    modules = models.adapter_targets(loaded.model, "all-linear", "all")
    rows = calibration.calibration_rows(loaded, SEQ_LEN)
    held_out = calibration.calibration_rows(loaded, SEQ_LEN, corpus.rows(SEQ_LEN).test)
    formats = calibrated(loaded, modules, rows)
    found = errors(loaded, formats, held_out)
    losses = {way: loss(loaded, formats[way], held_out) for way in WAYS}
    return "\n".join(
        [
            report(formats, found, losses),
            "",
            f"- {loaded.name}, fp32 weights; unrounded, the held-out loss is {loss(loaded, {}, held_out):.3f}",
            f"- calibrated on {len(rows)} rows of the Brown corpus of {SEQ_LEN} tokens, measured on {len(held_out)} "
            f"held-out ones; outliers {RATIO:.0%}",
            f"- torch {torch.__version__}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    return renew_part(
        arguments, "Errors of rounded activations.", MARK, MODEL, lambda model, _: measure(model)
    )


if __name__ == "__main__":
    sys.exit(main())
