"""The k best places of matrices that are never in memory as a whole, and how much of a sum they cover."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zoexport.core.config import parse, setting
from zoexport.core.errors import ConfigError, ModelError

if TYPE_CHECKING:
    import torch

    from zoexport.core.mask import Mask
    from zoexport.models.weights import WeightReader

KINDS = ("sensitive", "random", "largest", "smallest", "grasp")
READ_TEXT = ("sensitive", "grasp")


@dataclasses.dataclass(frozen=True)
class MaskConfig:
    """Settings of a mask: number of weights, selection method and amount of text."""

    density: float = setting(0.001, help="chosen share of the linear weights, at most 1", above=0)
    scope: str = setting(
        "model",
        help="the best of all linear weights together, or that share of each",
        choices=("model", "layer"),
    )
    kind: str = setting("sensitive", help="what chooses (docs/formats.md)", choices=KINDS)
    sequences: int = setting(64, help="of the text, drawn with the seed", at_least=1)
    max_length: int = setting(256, help="tokens of the longest sequence", at_least=2)
    seed: int = setting(0, help="of the sequences that are drawn, and of kind=random", at_least=0)

    @property
    def reads_text(self) -> bool:
        """True if the selection uses gradients on a text."""
        return self.kind in READ_TEXT


def parse_config(values: Mapping[str, Any]) -> MaskConfig:
    """Return the settings of ``--set``.

    Raises:
        ConfigError: unknown settings and impossible values; also a density above 1.
    """
    config = parse(MaskConfig, values)
    if config.density > 1:
        raise ConfigError(
            "setting 'density'",
            found=f"{config.density:g}",
            expected="a share above 0 and at most 1",
            fix="Write 0.001 for one weight in a thousand.",
        )
    return config


Score = Callable[[str, int, int], "torch.Tensor"]
"""float32 (end - begin, columns): the scores of a matrix's rows ``begin`` to ``end``; the highest are chosen."""

Shapes = Mapping[str, tuple[int, int]]

_BINS = 1 << 16
_PIECE = 1 << 21
"""Elements that are looked at together; random choices depend on it."""


def squares_score(squares: Mapping[str, torch.Tensor]) -> Score:
    """Definition 3's: ``argmax_m ||m * grad f(w)||^2`` takes the largest squared gradients."""
    return lambda name, begin, end: squares[name][begin:end]


def largest_score(weights: WeightReader) -> Score:
    """``|w| >= tau``."""
    return lambda name, begin, end: weights.read_rows(name, begin, end).abs()


def smallest_score(weights: WeightReader) -> Score:
    """``|w| <= tau``."""
    return lambda name, begin, end: -weights.read_rows(name, begin, end).abs()


def grasp_score(weights: WeightReader, products: Mapping[str, torch.Tensor]) -> Score:
    """``-w * E[H(w) grad f(w)] <= tau``: the smallest of GraSP's scores, so the largest of ``w * E[H g]``."""
    return lambda name, begin, end: (
        weights.read_rows(name, begin, end) * products[name][begin:end].cpu()
    )


def random_score(shapes: Shapes, seed: int) -> Score:
    """Uniform numbers that depend on seed, name and place: their k largest are a random k of all."""
    import torch

    def score(name: str, begin: int, end: int) -> torch.Tensor:
        digest = hashlib.sha256(f"{seed} {begin} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.rand((end - begin, shapes[name][1]), generator=generator)

    return score


Counts = Sequence[tuple[Sequence[str], int]]
"""Groups of weights, and how many places are chosen of each group."""


def counts(shapes: Shapes, density: float, scope: str) -> Counts:
    """Return the number of elements to select in each group of weights.

    Args:
        shapes: (rows, columns) by weight.
        density: share to select.
        scope: ``model``: k = max(1, round(density * all)) of all weights together; ``layer``:
            round(density * rows * columns) of each.

    Raises:
        ConfigError: with ``layer``, no element of a weight would be selected.
    """
    sizes = {name: rows * columns for name, (rows, columns) in shapes.items()}
    if scope == "model":
        return [(list(shapes), max(1, round(density * sum(sizes.values()))))]
    smallest = min(sizes, key=lambda name: sizes[name])
    if round(density * sizes[smallest]) == 0:
        rows, columns = shapes[smallest]
        raise ConfigError(
            "setting 'scope=layer'",
            found=f"{smallest} with {rows} x {columns} weights; density {density:g} chooses none",
            expected="at least one chosen weight in every layer",
            fix=f"Raise density to {1 / (rows * columns):.1g} or more, or use scope=model.",
        )
    return [([name], round(density * size)) for name, size in sizes.items()]


def choose(shapes: Shapes, score: Score, counts: Counts) -> dict[str, torch.Tensor]:
    """Return the places of each group's highest scores; the earlier place for equal scores.

    Args:
        shapes: (rows, columns) by weight, in the order of their places.
        score: is called several times for each row.
        counts: of :func:`counts`.

    Returns:
        int64 (chosen), ascending, for each name.

    Raises:
        ModelError: a score is not finite.
    """
    chosen: dict[str, torch.Tensor] = {}
    for names, count in counts:
        chosen |= top({name: shapes[name] for name in names}, score, count)
    return chosen


def top(shapes: Shapes, score: Score, count: int) -> dict[str, torch.Tensor]:
    """Return the ``count`` highest scores, at least 1 and at most all, by radix selection.

    Two histograms, of the upper and of the lower 16 bits of the scores as ordered integers, give the lowest score that
    is chosen; then the places at and above it are listed. Memory is that of a piece of rows and of the answer.

    Raises:
        ModelError: a score is not finite.
    """
    import torch

    def histogram(bins: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        found = torch.zeros(_BINS, dtype=torch.int64)
        for _, _, keys in pieces(shapes, score):
            found += torch.bincount(bins(keys), minlength=_BINS)
        return found

    upper, above = _bin_of(histogram(lambda keys: (keys >> 16) + _BINS // 2), count)
    lower, above_lower = _bin_of(
        histogram(lambda keys: keys[keys >> 16 == upper - _BINS // 2] & (_BINS - 1)), count - above
    )
    threshold = ((upper - _BINS // 2) << 16) + lower
    room = count - above - above_lower  # for scores that equal the threshold
    found: dict[str, list[torch.Tensor]] = {name: [] for name in shapes}
    for name, first, keys in pieces(shapes, score):
        places = torch.nonzero(keys >= threshold).flatten()
        equal = keys[places] == threshold
        kept = ~equal | (equal.cumsum(0) <= room)
        room -= int((equal & kept).sum())
        found[name].append(places[kept] + first)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _bin_of(histogram: torch.Tensor, count: int) -> tuple[int, int]:
    """Return the bin of the ``count``-th highest, and how many are in higher bins."""
    from_top = histogram.flip(0).cumsum(0)
    place = int((from_top < count).sum())
    return _BINS - 1 - place, int(from_top[place - 1]) if place else 0


def pieces(shapes: Shapes, score: Score) -> Iterator[tuple[str, int, torch.Tensor]]:
    """Name, place of the first element, and int32 keys (elements) in the order of the scores, piece by piece.

    Raises:
        ModelError: a score is not finite.
    """
    import torch

    for name, (rows, columns) in shapes.items():
        step = max(1, _PIECE // columns)
        for begin in range(0, rows, step):
            end = min(rows, begin + step)
            # Adding zero turns -0 into 0.
            scores = score(name, begin, end).flatten() + 0.0
            if not bool(torch.isfinite(scores).all()):
                raise ModelError(
                    f"scores of {name}",
                    found="values that are not finite",
                    expected="numbers to choose by",
                    fix="Check the model's weights.",
                )
            bits = scores.view(torch.int32)
            # The larger of two negative numbers has the smaller bits.
            yield name, begin * columns, torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def coverage(mask: Mask, squares: Mapping[str, torch.Tensor]) -> float:
    """The share of the squared gradient norm that a mask covers: ``||m * g||^2 / ||g||^2`` (figure 3 of SensZOQ).

    Args:
        mask: of the same model.
        squares: averaged squared gradients (rows, columns) by linear weight.

    Raises:
        ConfigError: the mask's weights have other names or shapes. ModelError: every gradient is zero.
    """
    found = {name: list(square.shape) for name, square in squares.items()}
    if found != mask.facts.shapes:
        raise ConfigError(
            f"mask for {mask.facts.model}",
            found="linear weights of other names or shapes",
            expected="those whose gradients were measured",
            fix="Make the mask from the same model.",
        )
    chosen = total = 0.0
    for name in squares:
        square = squares[name].flatten()
        chosen += float(square[mask.places[name]].sum())
        total += float(square.sum())
    if total == 0:
        raise ModelError(
            "gradients",
            found="zero for every linear weight",
            expected="a loss that depends on the weights",
            fix="Use a text whose labels the model does not predict with certainty.",
        )
    return chosen / total
