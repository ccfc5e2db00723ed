"""What is measured: variants, each a way to take a step (method, weights) and the size of a step (shape)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.errors import ConfigError, nearest

EAGER = "eager"
"""The method name of the baseline in PyTorch (``bench.eager``)."""
LABELS = ("all", "last")
"""Positions of a row whose token is predicted: every one, or the last alone."""
DEFAULT = "quick"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a step: ``batch`` rows of ``seq_len`` tokens, 2 * ``queries`` losses of each.

    Attributes:
        layers: the setting ``lora.layers``.
        labels: one of :data:`LABELS`.
    """

    seq_len: int
    batch: int
    queries: int
    layers: str = "all"
    labels: str = "all"

    def __str__(self) -> str:
        text = f"seq {self.seq_len}, q {self.queries}, B {self.batch}"
        return f"{text}, lora.layers {self.layers}, labels {self.labels}"


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to take a step of some shape.

    Attributes:
        method: of the registry, or :data:`EAGER`.
        weights: the setting ``weights``; fp32 for the baseline.
        bundle: the bundle that the user gave to be measured (or repeated by the baseline); None where the variant is
            compiled.
    """

    method: str
    weights: str
    shape: Shape
    bundle: Path | None = None

    def __str__(self) -> str:
        text = f"{self.method} {self.weights}, {self.shape}"
        return text if self.bundle is None else f"{text}, {self.bundle}"

    def settings(self) -> dict[str, str]:
        """What a bundle of this variant is compiled with; labels are not compiled in."""
        shape = self.shape
        return {
            "seq_len": str(shape.seq_len),
            "batch": str(shape.batch),
            "queries": str(shape.queries),
            "weights": self.weights,
            "lora.layers": shape.layers,
        }


@dataclasses.dataclass(frozen=True)
class Axes:
    """Variants as the product of what each axis lists.

    Attributes:
        rows: q * B; the batch is then ``rows`` / q, and ``batch`` is not used.
        eager: whether each shape is also measured in PyTorch.
    """

    methods: tuple[str, ...] = ("prge",)
    weights: tuple[str, ...] = ("int4",)
    seq_len: tuple[int, ...] = (64,)
    batch: tuple[int, ...] = (1,)
    queries: tuple[int, ...] = (1,)
    layers: tuple[str, ...] = ("all",)
    labels: tuple[str, ...] = LABELS
    rows: int | None = None
    eager: bool = True

    def shapes(self) -> list[Shape]:
        """Every shape.

        Raises:
            ConfigError: ``rows`` is no multiple of a number of queries.
        """
        shapes = []
        for length, queries, layers, labels in itertools.product(
            self.seq_len, self.queries, self.layers, self.labels
        ):
            if self.rows is not None and self.rows % queries:
                raise ConfigError(
                    "option --rows",
                    found=f"{self.rows} with {queries} queries",
                    expected="a multiple of every number of queries",
                    fix="Change --rows or --queries.",
                )
            batches = self.batch if self.rows is None else (self.rows // queries,)
            shapes += [Shape(length, batch, queries, layers, labels) for batch in batches]
        return shapes


_QUICK = Axes(methods=("prge", "mezo"), weights=("int4", "fp32"))
_QUERIES = Axes(queries=(1, 2, 4, 8, 16), rows=16, eager=False)
_LAYERS = Axes(queries=(4,), layers=("all", "last:8"), labels=("last",), eager=False)

PRESETS: Mapping[str, tuple[Axes, ...]] = {
    "quick": (_QUICK,),
    "queries": (_QUERIES,),
    "layers": (_LAYERS,),
    "full": (_QUICK, _QUERIES, _LAYERS),
}


def preset(name: str) -> tuple[Axes, ...]:
    """A preset by name.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    if name not in PRESETS:
        raise ConfigError(
            f"option --grid {name}",
            found="no such grid",
            expected="one of " + ", ".join(PRESETS),
            fix=f"Choose one of them.{nearest(name, PRESETS)}",
        )
    return PRESETS[name]


def variants(grid: Sequence[Axes], changes: Mapping[str, Any]) -> list[Variant]:
    """The variants of a grid, each once, with the axes that the user gave in place of the grid's own.

    Args:
        grid: of :func:`preset`.
        changes: values of :class:`Axes` by field.

    Raises:
        ConfigError: a batch and the number of rows, or values that do not fit together.
    """
    if "batch" in changes and "rows" in changes:
        raise ConfigError(
            "options --batch and --rows",
            found="both",
            expected="one: the batch is rows / queries",
            fix="Leave one of them out.",
        )
    if "batch" in changes:
        changes = {**changes, "rows": None}
    found: dict[Variant, None] = {}
    for axes in grid:
        chosen = dataclasses.replace(axes, **changes)
        for shape in chosen.shapes():
            for method, weights in itertools.product(chosen.methods, chosen.weights):
                found[Variant(method, weights, shape)] = None
            if chosen.eager:
                found[Variant(EAGER, "fp32", shape)] = None
    return list(found)


def of_bundle(
    bundle: Path, manifest: Mapping[str, Any], labels: Sequence[str], eager: bool
) -> list[Variant]:
    """The variants that measure a bundle, with every choice of labels."""
    settings = manifest["settings"]
    found = []
    for chosen in labels:
        shape = Shape(
            settings["seq_len"],
            settings["batch"],
            settings.get("queries", 1),  # a first-order method has none
            settings.get("lora.layers", "all"),
            chosen,
        )
        found.append(Variant(manifest["method"], settings["weights"], shape, bundle))
        if eager:
            found.append(Variant(EAGER, "fp32", shape, bundle))
    return found
