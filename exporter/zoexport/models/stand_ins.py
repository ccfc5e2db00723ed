"""Stand-ins: a model of the right shapes that holds no weights, and where in the files each of them lies.

transformers' own loader gets a stand-in for each tensor of the files: zeros of its shape, fresh from the system, which
take memory only once they are written. Where a parameter's memory lies then shows which tensor the loader made it of,
so prefixes, renamed and tied weights need no rules here. A loader that computes with a tensor (fused experts) makes
other memory of it, and such a model is loaded as a whole.
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
    """The stand-ins for every tensor of safetensors files.

    Attributes:
        tensors: by the names in the files. Tensors that are not floating-point ones, which are small tables, are
            here as they are.

    Args:
        files: where a name is in two files, the later one counts, as for transformers.
        padding: the token of padding, None if there is none.

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
        """The weights of a model that was loaded from :attr:`tensors`.

        Persistent buffers, and parameters without dimensions, get their values.

        Returns:
            None where a weight is not just one of the tensors, where the loader clears a row of padding, or where the
            files hold a weight twice with different values, of which transformers would not make one.

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
        """The matrices that have a row for padding."""
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
        """Whether the loader set a row of padding to zero which is not zero in the files, as some models do."""
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
        """Place and name of the output head's bias: transformers pads it, by nothing here, into memory of its own."""
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
        """Whether what a tied weight could have been instead is equal to it.

        The loader ties two tensors of the files where they are equal, and stand-ins always are. The tensor that it
        dropped has the tied one's shape.
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
