"""LoRA's first matrix along the leading directions of its layer's inputs (``lora.init_weights=activations``).

A linear layer with inputs H (n, in) and the gradient D (n, out) of its outputs has the gradient dL/dW = D^T H: its rows
lie in the span of H's. AGZO (Lin et al., "AGZO: Activation-Guided Zeroth-Order Optimization for LLM Fine-Tuning", ICML
2026, arXiv 2601.17261) therefore perturbs W by R V^T, R (out, r) normal and V (in, r) an orthonormal basis of the
dominant directions of H, which power iteration finds in every step. With a frozen A, noise in B
perturbs W by that noise times A: with A = V these are the same perturbations, for directions
computed once, on calibration text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoexport.calibration import calibration_file, calibration_rows, unusable, watch
from zoexport.core import rng
from zoexport.core.files import sha256
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.models.targets import adapter_targets

if TYPE_CHECKING:
    from zoexport.models import LoadedModel

_DRAWN = 2.0
"""Mean squared norm of the columns of a random A, N(0, 2/in)."""
_TENSOR_ID = 0x50000000
"""Tensor id of the initial noise of iterations; no parameter has it."""
_MORE = 16
"""Additional directions in the iteration, so that the wanted ones converge sooner."""
_ITERATIONS = 8
_LEAST = 1e-5
"""Singular value, relative to the largest, below which a direction is fp32 rounding error."""


@dataclasses.dataclass(frozen=True)
class Directions:
    """Measured directions.

    Attributes:
        a: A (in, rank) by path of the layer.
        facts: ``lora_init_weights`` of the manifest: text, rows and tokens used.
    """

    a: dict[str, Tensor]
    facts: dict[str, Any]


def directions_of(
    config: TrainingSettings, loaded: LoadedModel, data: Path | None, progress: Progress
) -> Directions | None:
    """Return the measured matrices A if the settings require them; None if A is random.

    Args:
        config: settings of the method; they may set ``measures_directions``. loaded: model; not
            changed.
        data: see :func:`~zoexport.calibration.calibration_rows`. progress: see ``core.progress.Progress``.

    Raises:
        DataError, ModelError: as ``calibration_rows`` and :func:`measure`.
    """
    if not config.measures_directions:
        return None
    progress("measuring directions of activations", None)
    settings: Any = config
    modules = adapter_targets(loaded.model, *config.modules, ranks=config.ranks)
    rows = calibration_rows(loaded, config.max_length, data)
    ranks = {name: settings.scaling.rank_of(name) for name in modules}
    file = calibration_file(loaded, data)
    text = None if file is None else {"name": file.name, "sha256": sha256(file)}
    facts = {"text": text, "rows": len(rows), "tokens": sum(map(len, rows))}
    return Directions(measure(loaded, ranks, rows, seed=config.seed), facts)


def measure(
    loaded: LoadedModel, ranks: Mapping[str, int], rows: Sequence[Sequence[int]], *, seed: int
) -> dict[str, Tensor]:
    """Return A = c V (in, rank) of each layer.

    V's columns are the first right singular vectors of its inputs x.

        c^2 = 2 rank/in sum |x|^2 / sum |x V|^2

    On these rows x A then has the same mean square as with a random A, N(0, 2/in), for which the
    scale of B's noise and the learning rate are chosen. c is sqrt(2), the norm of a random column,
    if inputs have the same energy in all directions; the more energy V has, the smaller c is.

    Inputs are those of the unquantized model on all rows at once; layers are measured as they run,
    and only their A is kept. Layers with the same input have the same A. A layer that runs more
    than once has the directions of all its inputs. If inputs have fewer directions than ``rank``,
    or if no row reaches a layer (an expert), random orthogonal directions fill the rest.

    Args:
        loaded: model; not changed. ranks: rank by path of the layer. rows: tokens of each row, at
            least one.
        seed: seed of the initial noise of iterations.

    Raises:
        ModelError: a layer reads values that are not finite.
    """
    found: dict[str, _Seen] = {}
    last: list[tuple[Tensor, int, _Seen]] = []
    """Previous input, rank and result: consecutive layers often read the same input."""

    def look(name: str, x: Tensor, values: Tensor) -> None:
        if name not in found and last and last[0][0] is x and last[0][1] == ranks[name]:
            found[name] = last[0][2]
            return
        if not bool(torch.isfinite(values).all()):
            raise unusable(
                name,
                "values that are not finite",
                "the directions of its adapter",
                "lora.init_weights=random",
            )
        energy = float(values.square().sum(dtype=torch.float64))
        if name in found:
            values = torch.cat([found[name].rows, values])
            energy += found[name].energy
        found[name] = _Seen(leading(values, ranks[name], seed), energy)
        last[:] = [(x, ranks[name], found[name])]

    watch(loaded, list(ranks), rows, look)
    return {
        name: _matrix(loaded, name, rank, found.get(name), seed) for name, rank in ranks.items()
    }


@dataclasses.dataclass(frozen=True)
class _Seen:
    """Summary of a layer's inputs: :func:`leading` directions and sum of squares."""

    rows: Tensor
    energy: float


def _matrix(loaded: LoadedModel, name: str, rank: int, seen: _Seen | None, seed: int) -> Tensor:
    model: Any = loaded.model
    size = model.get_submodule(name).in_features
    seen = seen or _Seen(torch.empty(0, size), 0.0)
    kept = float(seen.rows.square().sum(dtype=torch.float64))
    square = _DRAWN * rank / size * seen.energy / kept if kept else _DRAWN
    return square**0.5 * _basis(seen.rows, rank, seed)


def leading(x: Tensor, rank: int, seed: int) -> Tensor:
    """Return S V^T (at most rank, in) of the best approximation U S V^T of that rank.

    Uses subspace iteration from noise, orthonormalized after each product (Halko et al. 2011,
    algorithm 4.4).

    Args:
        x: (n, in).
    """
    q = _noise(x.shape[1], rank + _MORE, seed)
    for _ in range(_ITERATIONS):
        z, _ = torch.linalg.qr(x @ q)
        q, _ = torch.linalg.qr(x.T @ z)
    _, values, right = torch.linalg.svd((x @ q).double(), full_matrices=False)
    kept = int((values[:rank] > _LEAST * values[0]).sum())
    return ((values[:kept, None] * right[:kept]) @ q.T.double()).float()


def _basis(rows: Tensor, rank: int, seed: int) -> Tensor:
    """Return orthonormal columns (in, rank) along the orthogonal rows, then noise.

    Largest element positive.
    """
    columns = torch.cat([rows.T, _noise(rows.shape[1], rank, seed)], 1).double()
    q = torch.linalg.qr(columns).Q[:, :rank]
    largest = q.gather(0, q.abs().argmax(0, keepdim=True))
    return (q * largest.sign()).float().contiguous()


def _noise(size: int, columns: int, seed: int) -> Tensor:
    """Return normal numbers (size, at most columns)."""
    columns = min(columns, size)
    drawn = rng.normals(seed, _TENSOR_ID, 0, 0, size * columns)
    return torch.from_numpy(drawn).view(size, columns)
