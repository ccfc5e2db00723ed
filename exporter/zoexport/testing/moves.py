"""Rules for operations of an ML Program that only move elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from zoexport.testing.operands import Operands, Rule

#: np.pad's names for the modes of ``pad``.
_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}


def _shape_rules() -> Mapping[str, Rule]:
    return {
        "band_part": _band_part,
        "concat": _concat,
        "expand_dims": _expand_dims,
        "fill": lambda given: torch.full(
            given.integers("shape"), given.number("value"), dtype=given.tensor("value").dtype
        ),
        "fill_like": lambda given: torch.full(
            given.tensor("ref_tensor").shape,
            given.number("value"),
            dtype=given.tensor("value").dtype,
        ),
        "identity": lambda given: given.tensor("x"),
        "pad": _pad,
        "range_1d": _range_1d,
        "reshape": _reshape,
        "reverse": _reverse,
        "slice_by_index": _slice_by_index,
        "slice_by_size": _slice_by_size,
        "slice_update": _slice_update,
        "split": _split,
        "squeeze": _squeeze,
        "stack": lambda given: torch.stack(given.tensors("values"), given.integer("axis")),
        "tile": lambda given: given.tensor("x").tile(given.integers("reps")),
        "transpose": lambda given: given.tensor("x").permute(given.integers("perm")),
    }


def _index_rules() -> Mapping[str, Rule]:
    return {
        "gather": lambda given: _by_batch(
            given,
            lambda x, at: x[(slice(None),) * (_axis(given) - given.integer("batch_dims")) + (at,)],
        ),
        "gather_along_axis": lambda given: given.tensor("x").gather(*_along_axis(given, "x")),
        "gather_nd": lambda given: _by_batch(given, lambda x, at: x[at.unbind(-1)]),
        "scatter": _scatter,
        "scatter_along_axis": _scatter_along_axis,
        "scatter_nd": lambda given: _put(
            given,
            given.tensor("data"),
            given.tensor("indices").long().unbind(-1),
            given.tensor("updates"),
        ),
    }


def _band_part(given: Operands) -> torch.Tensor:
    """Zero ``x`` beyond ``lower`` diagonals below and ``upper`` above the main; negative: none."""
    x, lower, upper = given.tensor("x"), given.integer("lower"), given.integer("upper")
    rows, columns = x.shape[-2:]
    below = torch.arange(rows)[:, None] - torch.arange(columns)
    outside = torch.zeros(rows, columns, dtype=torch.bool)
    if lower >= 0:
        outside |= below > lower
    if upper >= 0:
        outside |= -below > upper
    return x.masked_fill(outside, 0)


def _concat(given: Operands) -> torch.Tensor:
    values, axis = given.tensors("values"), given.integer("axis")
    if not given.flag("interleave"):
        return torch.cat(values, axis)
    axis %= values[0].dim()
    return torch.stack(values, axis + 1).flatten(axis, axis + 1)


def _expand_dims(given: Operands) -> torch.Tensor:
    x, axes = given.tensor("x"), given.integers("axes")
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _squeeze(given: Operands) -> torch.Tensor:
    axes = given.optional_integers("axes")
    x = given.tensor("x")
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _pad(given: Operands) -> torch.Tensor:
    """Pad the last dimensions; ``pad`` has (before, after) for each of them, in order."""
    x, sizes = given.tensor("x"), given.integers("pad")
    mode = given.text("mode")
    pairs = list(zip(sizes[::2], sizes[1::2], strict=True))
    pairs = [(0, 0)] * (x.dim() - len(pairs)) + pairs
    value = {"constant_values": given.number("constant_val")} if mode == "constant" else {}
    # numpy's overloads go by a literal mode, which a table does not give.
    return torch.from_numpy(np.pad(x.numpy(), pairs, _PAD_MODES[mode], **value))  # type: ignore[call-overload]


def _range_1d(given: Operands) -> torch.Tensor:
    start, end, step = (given.tensor(name) for name in ("start", "end", "step"))
    return torch.arange(start.item(), end.item(), step.item(), dtype=start.dtype)


def _reshape(given: Operands) -> torch.Tensor:
    """Reshape; a size of 0 copies the dimension of ``x``, -1 is inferred."""
    x, shape = given.tensor("x"), given.integers("shape")
    return x.reshape([x.shape[axis] if size == 0 else size for axis, size in enumerate(shape)])


def _reverse(given: Operands) -> torch.Tensor:
    x, axes = given.tensor("x"), given.optional_integers("axes")
    return x.flip([*range(x.dim())] if axes is None else axes)


def _split(given: Operands) -> tuple[torch.Tensor, ...]:
    x, axis = given.tensor("x"), given.integer("axis")
    sizes = given.optional_integers("split_sizes")
    return x.split(sizes or x.shape[axis] // given.integer("num_splits"), axis)


def _slices(given: Operands) -> tuple[slice | int, ...]:
    """Return the NumPy index for ``begin``, ``end``, ``stride`` and the three masks.

    As in NumPy, a negative begin or end counts from the end of its dimension; a set mask means from (up to) the
    end of the dimension, by the sign of the stride.
    """
    begin, end = given.integers("begin"), given.integers("end")
    strides = given.optional_integers("stride") or [1] * len(begin)

    def mask(name: str) -> list[int]:
        return given.optional_integers(name) or [0] * len(begin)

    return tuple(
        first
        if squeezed
        else slice(None if from_start else first, None if to_end else last, stride)
        for first, last, stride, from_start, to_end, squeezed in zip(
            begin,
            end,
            strides,
            mask("begin_mask"),
            mask("end_mask"),
            mask("squeeze_mask"),
            strict=True,
        )
    )


def _slice_by_index(given: Operands) -> torch.Tensor:
    # By NumPy: PyTorch has no negative strides.
    return torch.from_numpy(np.array(given.tensor("x").numpy()[_slices(given)]))


def _slice_update(given: Operands) -> torch.Tensor:
    changed = given.tensor("x").numpy().copy()
    changed[_slices(given)] = given.tensor("update").numpy()
    return torch.from_numpy(changed)


def _slice_by_size(given: Operands) -> torch.Tensor:
    """Slice; a size of -1 extends to the end of its dimension."""
    x = given.tensor("x")
    pairs = zip(given.integers("begin"), given.integers("size"), x.shape, strict=True)
    for axis, (begin, size, length) in enumerate(pairs):
        x = x.narrow(axis, begin, length - begin if size == -1 else size)
    return x


def _axis(given: Operands) -> int:
    """Return the operand ``axis``, counted from the front."""
    return given.integer("axis") % given.tensor("x" if given.has("x") else "data").dim()


def _by_batch(
    given: Operands, pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply ``pick(x, indices)`` for every index of the first ``batch_dims`` dimensions of both."""
    x, indices, batch = (
        given.tensor("x"),
        given.tensor("indices").long(),
        given.integer("batch_dims"),
    )
    if not batch:
        return pick(x, indices)
    leading = x.shape[:batch]
    pairs = zip(x.flatten(0, batch - 1), indices.flatten(0, batch - 1), strict=True)
    return torch.stack([pick(*pair) for pair in pairs]).unflatten(0, leading)


def _along_axis(given: Operands, name: str) -> tuple[int, torch.Tensor]:
    """Return the axis and the non-negative indices along it, as PyTorch requires."""
    axis, indices = _axis(given), given.tensor("indices").long()
    return axis, torch.where(indices < 0, indices + given.tensor(name).shape[axis], indices)


def _scatter(given: Operands) -> torch.Tensor:
    """Put ``updates`` (data[:axis], indices, data[axis+1:]) into slices ``indices`` of ``data``."""
    axis, indices = _axis(given), given.tensor("indices").long()
    among = range(axis, axis + indices.dim())
    updates = given.tensor("updates").movedim(tuple(among), tuple(range(indices.dim())))
    return _put(given, given.tensor("data").movedim(axis, 0), (indices,), updates).movedim(0, axis)


def _scatter_along_axis(given: Operands) -> torch.Tensor:
    axis, indices = _along_axis(given, "data")
    data, updates = given.tensor("data"), given.tensor("updates")
    if _adds(given):
        return data.scatter_add(axis, indices, updates)
    return data.scatter(axis, indices, updates)


def _put(
    given: Operands, data: torch.Tensor, at: tuple[torch.Tensor, ...], updates: torch.Tensor
) -> torch.Tensor:
    return data.index_put(at, updates, accumulate=_adds(given))


def _adds(given: Operands) -> bool:
    mode = given.text("mode")
    if mode not in ("add", "update"):
        raise ValueError(f"mode {mode!r}; there are rules for 'add' and 'update'")
    return mode == "add"


RULES: Mapping[str, Rule] = {**_shape_rules(), **_index_rules()}
