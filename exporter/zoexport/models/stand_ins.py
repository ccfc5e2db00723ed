"""Stand-ins: a model with shapes but no weights, and the location of each weight in files.

transformers' own loader gets a stand-in for each tensor of the files: newly allocated zeros of its
shape, which take memory only when written. The address of a parameter then shows from which tensor
the loader made it, so prefixes, renamed and tied weights need no rules here. Tensors that the loader
joins (fused experts) become a stand-in again. A loader that computes with a tensor in another way
allocates new memory; such a model is loaded completely.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.untouched import untouched_zeros
from zoexport.models.weights import (
    JoinedTensor,
    Stored,
    StoredTensor,
    StoredWeights,
    open_safetensors,
    row_pieces,
)

if TYPE_CHECKING:
    import torch

_Places = dict[int, tuple["torch.Tensor", Stored]]
"""Stand-ins by their addresses, and what they stand for."""


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
        self._places: _Places = {
            tensor.data_ptr(): (tensor, self._stored[key])
            for key, tensor in self.tensors.items()
            if tensor.numel()
        }
        self._padding = padding
        for table in self._tables():
            table[padding, 0] = 1.0

    def joining(self) -> AbstractContextManager[Any]:
        """Return a context in which stacking or concatenating stand-ins makes a stand-in."""
        return _joining(self._places)

    def weights(self, model: torch.nn.Module) -> StoredWeights | None:
        """Return the weights of a model that was loaded from :attr:`tensors`.

        Persistent buffers, and parameters without dimensions, get their values.

        Returns:
            None if a weight is neither one of the tensors nor joined from them, if the loader clears
            a row of padding, or if the files contain a tied weight twice with different values,
            which transformers would not tie.

        Raises:
            ModelError: a file can no longer be read.
        """
        if self._clears_padding():
            return None
        places = self._places | self._padded_bias(model)
        weights: dict[str, Stored] = {}
        for name, value in model.state_dict().items():
            stored = _stored_at(places, value)
            if stored is None:
                return None
            weights[name] = stored
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

    def _padded_bias(self, model: torch.nn.Module) -> _Places:
        """Return the place of the head's bias, which transformers pads into new memory."""
        find: Any = getattr(model, "get_output_embeddings", None)
        bias = getattr(find() if find else None, "bias", None)
        if bias is None:
            return {}
        return {
            value.data_ptr(): (self.tensors[name], self._stored[name])
            for name, value in model.state_dict().items()
            if value.data_ptr() == bias.data_ptr()
            and name in self._stored
            and self._stored[name].shape == tuple(bias.shape)
        }

    def _ties_hold(self, weights: dict[str, Stored]) -> bool:
        """Return whether tied weights are equal in the files.

        The loader ties two tensors of the files if they are equal, and stand-ins always are. The
        dropped tensor has the shape of the tied one.
        """
        uses = Counter(weights.values())
        tied = [stored for stored, count in uses.items() if count > 1]
        used = {part for stored in uses for part in stored.stored()}
        dropped = [stored for stored in self._stored.values() if stored not in used]
        return all(
            _equal(one, other) for one in tied for other in dropped if one.shape == other.shape
        )


def _stored_at(places: _Places, value: torch.Tensor) -> Stored | None:
    """Return what a tensor stands for; None if it is not a whole stand-in."""
    tensor, stored = places.get(value.data_ptr(), (None, None))
    return stored if tensor is not None and _same_layout(value, tensor) else None


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def _joining(places: _Places) -> AbstractContextManager[Any]:
    import torch
    from torch.overrides import TorchFunctionMode

    def joined(function: Any, tensors: Any, dim: int = 0) -> torch.Tensor | None:
        parts: Any = tuple(_stored_at(places, tensor) for tensor in tensors)
        stacked = function is torch.stack
        if None in parts or tensors[0].dtype != torch.float32 or stacked != (dim == 0):
            return None
        shape = tuple(function([tensor.to("meta") for tensor in tensors], dim).shape)
        made = untouched_zeros(shape)
        places[made.data_ptr()] = made, JoinedTensor(parts, None if stacked else dim, shape)
        return made

    class Joining(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            options = kwargs or {}
            join = function in (torch.stack, torch.cat)
            made = joined(function, *args, **options) if join else None
            return function(*args, **options) if made is None else made

    return Joining()


def _equal(one: Stored, other: Stored) -> bool:
    import torch

    if not one.shape:
        return torch.equal(one.read(), other.read())
    return all(
        torch.equal(one.read_rows(first, last), other.read_rows(first, last))
        for first, last in row_pieces(one.shape, 0, one.shape[0])
    )
