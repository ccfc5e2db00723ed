"""The loss of ``make report-quzo``: one small transformer encoder block and the mean squared error of what it gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

Loss = Callable[[Tensor], Tensor]
"""A vector of weights (d,) to a scalar."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Attention and a feed-forward part, each after a layer norm without weights and added to its input; no biases.

    Weights are one vector (d,): of each matrix (outputs, inputs) the rows, in the order of :meth:`shapes`.
    """

    width: int = 16
    heads: int = 2
    hidden: int = 32

    def shapes(self) -> list[tuple[int, int]]:
        """Query, key, value, output, up, down."""
        width, hidden = self.width, self.hidden
        return [(width, width)] * 4 + [(hidden, width), (width, hidden)]

    def size(self) -> int:
        """The number of weights, d."""
        return sum(map(math.prod, self.shapes()))

    def weights(self, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Normal numbers of variance 1 / inputs, (d,)."""
        generator = torch.Generator().manual_seed(seed)
        return torch.cat(
            [
                torch.randn(rows * columns, generator=generator, dtype=dtype) / columns**0.5
                for rows, columns in self.shapes()
            ]
        )

    def matrices(self, vector: Tensor) -> list[Tensor]:
        """The matrices that a vector (d,) holds."""
        shapes = self.shapes()
        parts = vector.split([math.prod(shape) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def row_maxima(self, vector: Tensor) -> Tensor:
        """The largest magnitude of each weight's row, (d,)."""
        maxima = [
            matrix.abs().amax(1, keepdim=True).expand_as(matrix).flatten()
            for matrix in self.matrices(vector)
        ]
        return torch.cat(maxima)

    def outputs(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """What the block gives for weights (d,) and inputs (..., tokens, width): (..., tokens, width)."""
        query, key, value, out, up, down = self.matrices(vector)
        each = self.width // self.heads
        normed = layer_norm(inputs, (self.width,))
        queries, keys, values = (
            (normed @ matrix.T).unflatten(-1, (self.heads, each)).transpose(-2, -3)
            for matrix in (query, key, value)
        )
        shares = torch.softmax(queries @ keys.transpose(-1, -2) / each**0.5, -1)
        middle = inputs + (shares @ values).transpose(-2, -3).flatten(-2) @ out.T
        return middle + gelu(layer_norm(middle, (self.width,)) @ up.T) @ down.T

    def labels(self, vector: Tensor, inputs: Tensor) -> Tensor:
        """One number for each sequence, (...): the first output, averaged over tokens."""
        return self.outputs(vector, inputs)[..., 0].mean(-1)


def distance(function: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, wanted: Tensor) -> Loss:
    """The mean squared distance of what a block gives for ``inputs`` from ``wanted``."""
    return lambda vector: (function(vector, inputs) - wanted).square().mean()


def gradient(loss: Loss, at: Tensor) -> Tensor:
    """The loss's at weights (d,), by autograd, (d,)."""
    weights = at.clone().requires_grad_()  # torch.func.grad would load the whole of torch._dynamo
    (found,) = torch.autograd.grad(loss(weights), weights)
    return found


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
