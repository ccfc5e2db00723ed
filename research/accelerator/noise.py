"""The noise specification (docs/noise.md) in PyTorch, for all seeds, queries and slots of a step at once.

The same numbers as ``zoexport.core.rng``, computed where the runs are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoexport.core import rng

_WORD = 0xFFFFFFFF


class Noise:
    """z of a step for several seeds.

    Args:
        slots: tensor id and number of elements of each, in the order in which they lie in a flat vector.
        seeds: of the runs. queries: directions a step.
        signs: Rademacher signs in place of normal numbers.
        device: where the numbers are made.
    """

    def __init__(
        self,
        slots: Sequence[tuple[int, int]],
        seeds: Sequence[int],
        queries: int,
        device: torch.device,
        *,
        signs: bool = False,
    ) -> None:
        self._signs = signs
        counts = [count for _, count in slots]
        blocks = [(count + 3) // 4 for count in counts]
        self._block = torch.cat([torch.arange(count) for count in blocks]).to(device)
        ids = torch.tensor([number for number, _ in slots])
        self._id = ids.repeat_interleave(torch.tensor(blocks)).to(device)
        self._query = torch.arange(queries, device=device)[None, :, None]
        keys = torch.tensor([[seed & _WORD, seed >> 32] for seed in seeds], device=device)
        self._low, self._high = keys[:, 0, None, None], keys[:, 1, None, None]
        self._whole = all(count % 4 == 0 for count in counts)
        # Elements that are left over in a slot's last block belong to no slot.
        kept = torch.cat(
            [torch.arange(4 * held) < count for held, count in zip(blocks, counts, strict=True)]
        )
        self._kept = kept.nonzero()[:, 0].to(device)

    def __call__(self, step: int) -> Tensor:
        """float32 (seeds, queries, elements)."""
        words = self._philox(step)
        if self._signs:
            values = torch.stack([1.0 - (word >> 31) * 2.0 for word in words], -1).float()
        else:
            pairs = [_normals(words[0], words[1]), _normals(words[2], words[3])]
            values = torch.stack([*pairs[0], *pairs[1]], -1)
        values = values.flatten(-2)
        return values if self._whole else values[..., self._kept]

    def _philox(self, step: int) -> list[Tensor]:
        """Four words (seeds, queries, blocks) of each block, as int64 from 0 to 2^32 - 1."""
        shape = torch.broadcast_shapes(self._low.shape, self._query.shape, self._block.shape)
        c0 = self._block.expand(shape)
        c1, c2 = self._id, self._query
        c3 = torch.tensor(step, device=self._block.device)
        low, high = self._low, self._high
        for _ in range(rng.ROUNDS):
            # Bits of products, modulo 2^64, are those of unsigned ones.
            first, second = c0 * rng.MULTIPLIERS[0], c2 * rng.MULTIPLIERS[1]
            c0, c1, c2, c3 = (
                ((second >> 32) & _WORD) ^ c1 ^ low,
                second & _WORD,
                ((first >> 32) & _WORD) ^ c3 ^ high,
                first & _WORD,
            )
            low, high = (low + rng.KEY_STEPS[0]) & _WORD, (high + rng.KEY_STEPS[1]) & _WORD
        return [word.expand(shape) for word in (c0, c1, c2, c3)]


def _normals(radius: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Box-Muller of two words, by PyTorch's own logarithm, sine and cosine: within 2e-7 of the specification's bits."""
    u = ((radius >> 9).float() + 0.5) * 2.0**-23
    r = torch.sqrt(-2 * torch.log(u))
    turn = (angle >> 8).float() * (2 * torch.pi * 2.0**-24)
    return r * torch.cos(turn), r * torch.sin(turn)
