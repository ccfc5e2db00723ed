"""Stand-ins: a model with shapes but no weights, and the location of each weight in files.

transformers' own loader gets a stand-in for each tensor of the files: newly allocated zeros of its
shape, which take memory only when written. The address of a parameter then shows from which tensor
the loader made it, so prefixes, renamed and tied weights need no rules here. A loader that computes
with a tensor (fused experts) allocates new memory; such a model is loaded completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.untouched import untouched_zeros
from zoexport.models.weights import StoredTensor, StoredWeights, open_safetensors, row_pieces

if TYPE_CHECKING:
    import torch


class StandIns:
    """Stand-ins for every tensor of safetensors files.

    Attributes:
        tensors: stand-ins by the names in the files. Tensors that are not floating-point, which are
            small tables, have their values.

    Args:
        files: safetensors files; if two contain a name, the later one is used, as in transformers.
        padding: padding token, None if there is none.

    Raises:
        ModelError: a file is damaged or incomplete.
    """

    def __init__(self, files: Iterable[Path], padding: int | None = None) -> None:
        self._stored: dict[str, StoredTensor] = {}
        for path in files:
            with open_safetensors(path) as file:
                for key in file.keys():  # noqa: SIM118, it is no mapping
                    view = file.get_slice(key)
                    floating = view.get_dtype().startswith(("F", "BF"))
                    shape = tuple(view.get_shape())
                    self._stored[key] = StoredTensor(path, key, shape, floating)
        self.tensors: dict[str, torch.Tensor] = {
            key: untouched_zeros(stored.shape) if stored.floating else stored.read()
            for key, stored in self._stored.items()
        }
        self._padding = padding
        for table in self._tables():
            table[padding, 0] = 1.0

    def weights(self, model: torch.nn.Module) -> StoredWeights | None:
        """Return the weights of a model that was loaded from :attr:`tensors`.

        Persistent buffers, and parameters without dimensions, get their values.

        Returns:
            None if a weight is not exactly one of the tensors, if the loader clears a row of
            padding, or if the files contain a tied weight twice with different values, which
            transformers would not tie.

        Raises:
            ModelError: a file can no longer be read.
        """
        if self._clears_padding():
            return None
        places = {tensor.data_ptr(): key for key, tensor in self.tensors.items() if tensor.numel()}
        places |= self._padded_bias(model)
        weights: dict[str, StoredTensor] = {}
        for name, value in model.state_dict().items():
            key = places.get(value.data_ptr())
            if key is None or not _same_layout(value, self.tensors[key]):
                return None
            weights[name] = self._stored[key]
        if not self._ties_hold(weights):
            return None
        small = [(name, value.data) for name, value in model.named_parameters() if not value.dim()]
        for name, value in (*model.named_buffers(), *small):
            if name in weights:
                value.copy_(weights[name].read())
        return StoredWeights(weights)

    def _tables(self) -> list[torch.Tensor]:
        """Return the matrices that have a row for padding."""
        return [
            self.tensors[key]
            for key, stored in self._stored.items()
            if stored.floating
            and len(stored.shape) == 2
            and self._padding is not None
            and 0 <= self._padding < stored.shape[0]
            and stored.shape[1]
        ]

    def _clears_padding(self) -> bool:
        """Return whether the loader zeroed a padding row that is not zero in the files."""
        tables = {table.data_ptr(): table for table in self._tables()}
        found = False
        for key, tensor in self.tensors.items():
            table = tables.get(tensor.data_ptr())
            if table is None:
                continue
            row = int(self._padding or 0)
            cleared = not table[row, 0]
            table[row, 0] = 0.0
            found |= cleared and bool(self._stored[key].read_rows(row, row + 1).any())
        return found

    def _padded_bias(self, model: torch.nn.Module) -> dict[int, str]:
        """Return address and name of the head's bias, which transformers pads into new memory."""
        find: Any = getattr(model, "get_output_embeddings", None)
        bias = getattr(find() if find else None, "bias", None)
        if bias is None:
            return {}
        return {
            value.data_ptr(): name
            for name, value in model.state_dict().items()
            if value.data_ptr() == bias.data_ptr()
            and name in self._stored
            and self._stored[name].shape == tuple(bias.shape)
        }

    def _ties_hold(self, weights: dict[str, StoredTensor]) -> bool:
        """Return whether tied weights are equal in the files.

        The loader ties two tensors of the files if they are equal, and stand-ins always are. The
        dropped tensor has the shape of the tied one.
        """
        uses = Counter(weights.values())
        tied = [stored for stored, count in uses.items() if count > 1]
        dropped = [stored for stored in self._stored.values() if stored not in uses]
        return all(
            _equal(one, other) for one in tied for other in dropped if one.shape == other.shape
        )


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    import torch

    if not one.shape:
        return torch.equal(one.read(), other.read())
    return all(
        torch.equal(one.read_rows(first, last), other.read_rows(first, last))
        for first, last in row_pieces(one.shape, 0, one.shape[0])
    )
