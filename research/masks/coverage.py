"""What masks cover: squares of a gradient as one vector, the places of the largest, and sums over them.

Places are those of all linear weights one after the other, in the model's order. A ranking has a mask's places, the
best first, so that its beginning is the mask of every smaller density.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoexport.core.files import atomic_file
from zoexport.tools.mask_choice import Score, Shapes, pieces, top

if TYPE_CHECKING:
    import torch

FRACTIONS = tuple(10 ** (exponent / 4) for exponent in range(-20, 1))
"""Shares of a layer's weights at which its curve is stated: from one in 100,000 to all."""


def sizes(shapes: Shapes) -> dict[str, int]:
    """Elements of each weight."""
    return {name: rows * columns for name, (rows, columns) in shapes.items()}


def counts(shapes: Shapes, densities: Sequence[float]) -> list[int]:
    """How many places masks of some densities have, as ``scope=model`` counts them."""
    weights = sum(sizes(shapes).values())
    return [max(1, round(density * weights)) for density in densities]


def ranking(shapes: Shapes, score: Score, count: int) -> torch.Tensor:
    """The places of the ``count`` highest scores, int64, the highest first; of equal ones the earlier place.

    Raises:
        ModelError: a score is not finite.
    """
    import torch

    chosen = top(shapes, score, count)
    begins = _begins(shapes)
    places, keys = [], []
    # In the pieces that chose: random scores depend on them.
    for name, first, of_piece in pieces(shapes, score):
        here = chosen[name]
        here = here[(here >= first) & (here < first + of_piece.numel())]
        places.append(here + begins[name])
        keys.append(of_piece[here - first])
    order = torch.argsort(torch.cat(keys), descending=True, stable=True)
    return torch.cat(places)[order]


def by_weight(shapes: Shapes, places: torch.Tensor) -> dict[str, torch.Tensor]:
    """Places among all weights as ascending places in each, int64."""
    import torch

    ordered = places.sort()[0]
    bounds = torch.tensor([*_begins(shapes).values(), sum(sizes(shapes).values())])
    cuts = torch.searchsorted(ordered, bounds).tolist()
    return {
        name: ordered[cuts[number] : cuts[number + 1]] - bounds[number]
        for number, name in enumerate(shapes)
    }


def covered(squares: torch.Tensor, ranked: torch.Tensor, counts: Sequence[int]) -> list[float]:
    """The share of a squared norm that the first places of a ranking have (figure 3 of SensZOQ).

    Args:
        squares: float32 (weights). ranked: of :func:`ranking`, as many as the largest count at least.
        counts: of places.
    """
    sums = squares[ranked].double().cumsum(0)
    total = float(squares.double().sum())
    return [float(sums[count - 1]) / total for count in counts]


def overlap(
    first: torch.Tensor, second: torch.Tensor, counts: Sequence[int], weights: int
) -> list[float]:
    """The share of the first places of one ranking that are among as many of another (figure 12).

    Args:
        weights: that places are among.
    """
    import torch

    found = []
    for count in counts:
        inside = torch.zeros(weights, dtype=torch.bool)
        inside[first[:count]] = True
        found.append(float(inside[second[:count]].double().mean()))
    return found


def curve(
    squares: Mapping[str, torch.Tensor], fractions: Sequence[float]
) -> dict[str, list[float]]:
    """The share of a layer's squared norm that so many of its largest squares have (figure 2).

    Args:
        squares: (rows, columns) by weight; one that is zero everywhere is left out.
        fractions: of a weight's elements; at least one element is taken.

    Returns:
        ``mean`` and ``std`` over the weights, a value a fraction.
    """
    import torch

    shares = []
    for name in squares:
        values = squares[name].flatten().sort(descending=True)[0].double().cumsum(0)
        if values[-1] > 0:
            places = [max(1, round(share * values.numel())) - 1 for share in fractions]
            shares.append(values[places] / values[-1])
    table = torch.stack(shares)
    spread = table.std(0, unbiased=False)
    return {"mean": table.mean(0).tolist(), "std": spread.tolist()}


def views(shapes: Shapes, vector: torch.Tensor) -> dict[str, torch.Tensor]:
    """A vector of all weights' elements as matrices by name."""
    begins, found = _begins(shapes), {}
    for name, (rows, columns) in shapes.items():
        part = vector[begins[name] : begins[name] + rows * columns]
        found[name] = part.view(rows, columns)
    return found


def save(path: Path, tensors: Sequence[torch.Tensor]) -> None:
    """Write tensors of one type one after the other, flat; the file is whole or absent."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        for tensor in tensors:
            file.write(tensor.contiguous().numpy().tobytes())


def mapped(path: Path, dtype: torch.dtype) -> torch.Tensor:
    """What :func:`save` wrote, mapped; writing to it changes no file."""
    import torch

    count = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=count, dtype=dtype)


def _begins(shapes: Shapes) -> dict[str, int]:
    begins, end = {}, 0
    for name, size in sizes(shapes).items():
        begins[name], end = end, end + size
    return begins
