"""The matrix of variants that are measured: each a way to take a step (method, weights) and its size (shape)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core.config import fields
from zoexport.core.errors import ConfigError, nearest
from zoexport.methods import methods

EAGER = "eager"
"""The method name of the zeroth-order baseline in PyTorch (``tools.bench.eager``)."""
AUTOGRAD = "autograd"
"""The method name of the first-order baseline in PyTorch (``tools.bench.autograd``)."""
BASELINES = (EAGER, AUTOGRAD)
LABELS = ("all", "last")
"""Positions of a row whose token is predicted: every one, or the last alone."""
DEFAULT = "quick"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of a step: ``batch_size`` rows of ``max_length`` tokens, 2 * ``num_queries`` losses of each.

    Attributes:
        layers, targets: the settings ``lora.layers_to_transform`` and ``lora.target_modules``.
        labels: one of :data:`LABELS`.
    """

    max_length: int
    batch_size: int
    num_queries: int
    layers: str = "all"
    labels: str = "all"
    targets: str = "attention"

    def __str__(self) -> str:
        text = f"seq {self.max_length}, q {self.num_queries}, B {self.batch_size}"
        text += f", lora.layers_to_transform {self.layers}, labels {self.labels}"
        return (
            text if self.targets == "attention" else f"{text}, lora.target_modules {self.targets}"
        )


@dataclasses.dataclass(frozen=True)
class Variant:
    """Combination of method, weights and shape to measure.

    Attributes:
        method: a registered method, or one of :data:`BASELINES`.
        weights: the setting ``weights``; fp32 for a baseline.
        bundle: the user's bundle to measure (or to repeat with the baseline); None if the variant
            is compiled.
        activation_cache_mb: the setting of this name of a first-order method; None: the target's
            default, or no such setting.
    """

    method: str
    weights: str
    shape: Shape
    bundle: Path | None = None
    activation_cache_mb: int | None = None

    def __str__(self) -> str:
        text = f"{self.method} {self.weights}, {self.shape}"
        if self.activation_cache_mb is not None:
            text += f", activation_cache_mb {self.activation_cache_mb}"
        return text if self.bundle is None else f"{text}, {self.bundle}"

    def settings(self) -> dict[str, str]:
        """Return the compile settings that the method has; labels are not compiled in."""
        shape = self.shape
        wanted = {
            "max_length": str(shape.max_length),
            "batch_size": str(shape.batch_size),
            "num_queries": str(shape.num_queries),
            "weights": self.weights,
            "lora.layers_to_transform": shape.layers,
            "lora.target_modules": shape.targets,
            **(
                {}
                if self.activation_cache_mb is None
                else {"activation_cache_mb": str(self.activation_cache_mb)}
            ),
        }
        known = fields(methods.get(self.method).config)
        return {key: value for key, value in wanted.items() if key in known}


def measured_variant(entry: Mapping[str, Any]) -> Variant:
    """Return the compiled variant that an entry of a measurement's ``results`` describes."""
    shape = {field.name: entry[field.name] for field in dataclasses.fields(Shape)}
    own = {key: entry[key] for key in ("method", "weights", "activation_cache_mb")}
    return Variant(shape=Shape(**shape), **own)


def first_order(method: str) -> bool:
    """Return whether a method or baseline is first-order; it then has no queries.

    Raises:
        ConfigError: no such method.
    """
    if method in BASELINES:
        return method == AUTOGRAD
    config: Any = methods.get(method).config
    return bool(config.first_order)


@dataclasses.dataclass(frozen=True)
class Axes:
    """Axes of a matrix; the variants are the product of their values.

    Attributes:
        rows: q * B; the batch is then ``rows`` / q, and ``batch_size`` is not used.
        eager: whether to also measure each shape in PyTorch: a first-order step if a method is
            first-order, else a zeroth-order step.
        activation_cache_mb: values for the methods with this setting.
    """

    methods: tuple[str, ...] = ("prge",)
    weights: tuple[str, ...] = ("int4",)
    max_length: tuple[int, ...] = (64,)
    batch_size: tuple[int, ...] = (1,)
    num_queries: tuple[int, ...] = (1,)
    layers: tuple[str, ...] = ("all",)
    labels: tuple[str, ...] = LABELS
    targets: tuple[str, ...] = ("attention",)
    activation_cache_mb: tuple[int | None, ...] = (None,)
    rows: int | None = None
    eager: bool = True

    def shapes(self) -> list[Shape]:
        """Return every shape.

        Raises:
            ConfigError: ``rows`` is no multiple of a number of queries.
        """
        shapes = []
        for length, queries, layers, labels, targets in itertools.product(
            self.max_length, self.num_queries, self.layers, self.labels, self.targets
        ):
            if self.rows is not None and self.rows % queries:
                raise ConfigError(
                    "option --rows",
                    found=f"{self.rows} with {queries} queries",
                    expected="a multiple of every number of queries",
                    fix="Change --rows or --num-queries.",
                )
            batches = self.batch_size if self.rows is None else (self.rows // queries,)
            shapes += [Shape(length, batch, queries, layers, labels, targets) for batch in batches]
        return shapes


_QUICK = Axes(methods=("prge", "mezo"), weights=("int4", "fp32"))
_QUERIES = Axes(num_queries=(1, 2, 4, 8, 16), rows=16, eager=False)
_LAYERS = Axes(num_queries=(4,), layers=("all", "last:8"), labels=("last",), eager=False)
_ALL_LAYERS = 2000
"""MB that hold the results of all layers of small models, at the grid's lengths."""
_MEBP = Axes(
    methods=("mebp", "mezo"),
    max_length=(128, 256, 512, 1024, 2048),
    labels=("all",),
    targets=("all-linear",),
    activation_cache_mb=(0, _ALL_LAYERS),
)

PRESETS: Mapping[str, tuple[Axes, ...]] = {
    "quick": (_QUICK,),
    "queries": (_QUERIES,),
    "layers": (_LAYERS,),
    "full": (_QUICK, _QUERIES, _LAYERS),
    "mebp": (_MEBP,),
}


def preset(name: str) -> tuple[Axes, ...]:
    """Return a preset by name.

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


def variants(parts: Sequence[Axes], changes: Mapping[str, Any]) -> list[Variant]:
    """The variants of a matrix, each once, with the axes that the user gave in place of its own.

    Args:
        parts: of :func:`preset`.
        changes: values of :class:`Axes` by field.

    Raises:
        ConfigError: a batch and the number of rows, or values that do not fit together.
    """
    if "batch_size" in changes and "rows" in changes:
        raise ConfigError(
            "options --batch-size and --rows",
            found="both",
            expected="one: the batch is rows / queries",
            fix="Leave one of them out.",
        )
    if "batch_size" in changes:
        changes = {**changes, "rows": None}
    found: dict[Variant, None] = {}
    for axes in parts:
        chosen = dataclasses.replace(axes, **changes)
        for shape in chosen.shapes():
            for method, weights, activation_cache_mb in itertools.product(
                chosen.methods, chosen.weights, chosen.activation_cache_mb
            ):
                made = Variant(method, weights, _shape(method, shape))
                kept = activation_cache_mb if "activation_cache_mb" in _settings(method) else None
                found[dataclasses.replace(made, activation_cache_mb=kept)] = None
            if chosen.eager:
                baseline = AUTOGRAD if any(map(first_order, chosen.methods)) else EAGER
                found[Variant(baseline, "fp32", _shape(baseline, shape))] = None
    return list(found)


def _shape(method: str, shape: Shape) -> Shape:
    return dataclasses.replace(shape, num_queries=1) if first_order(method) else shape


def _settings(method: str) -> Mapping[str, Any]:
    config: Any = methods.get(method).config
    return fields(config)


def of_bundle(
    bundle: Path, manifest: Mapping[str, Any], labels: Sequence[str], eager: bool
) -> list[Variant]:
    """Return the variants that measure a bundle, with every choice of labels."""
    settings = manifest["settings"]
    found = []
    for chosen in labels:
        shape = Shape(
            settings["max_length"],
            settings["batch_size"],
            settings.get("num_queries", 1),  # a first-order method has none
            settings.get("lora.layers_to_transform", "all"),
            chosen,
            settings.get("lora.target_modules", "attention"),
        )
        found.append(Variant(manifest["method"], settings["weights"], shape, bundle))
        if eager:
            baseline = EAGER if "num_queries" in settings else AUTOGRAD
            found.append(Variant(baseline, "fp32", shape, bundle))
    return found
