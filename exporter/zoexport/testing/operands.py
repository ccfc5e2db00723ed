"""Operands of an operation, the input of its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from zoexport.testing.values import Value

#: Types that are computed in a wider type: fp16 is accumulated in fp32, and PyTorch has hardly any
#: operation on uint16. A result is rounded to its declared type by the caller.
_WIDER = {torch.float16: torch.float32, torch.uint16: torch.int32}


class Operands:
    """The operands of one operation, by name.

    Every method raises ValueError if the operand is missing or of another kind; methods with
    ``optional`` in their name return None for a missing operand.
    """

    def __init__(self, values: Mapping[str, Sequence[Value]]) -> None:
        self._values = {
            name: [_widened(value) for value in given] for name, given in values.items()
        }

    def has(self, name: str) -> bool:
        """Return whether the operand is given."""
        return name in self._values

    def tensors(self, name: str) -> list[torch.Tensor]:
        """The tensors of an operand that takes several."""
        found = self._values.get(name, [])
        tensors = [value for value in found if isinstance(value, torch.Tensor)]
        if not tensors or len(tensors) != len(found):
            raise ValueError(f"no tensor operand {name!r}")
        return tensors

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of any shape."""
        return self.tensors(name)[0]

    def optional(self, name: str) -> torch.Tensor | None:
        """A tensor of any shape, or None."""
        return self.tensor(name) if self.has(name) else None

    def text(self, name: str) -> str:
        """A string."""
        found = self._values.get(name, [None])[0]
        if not isinstance(found, str):
            raise ValueError(f"no string operand {name!r}")
        return found

    def number(self, name: str) -> float:
        """A scalar, or a tensor with one element."""
        return float(self.tensor(name).item())

    def integer(self, name: str) -> int:
        """A scalar, or a tensor with one element."""
        return int(self.tensor(name).item())

    def flag(self, name: str) -> bool:
        """A boolean scalar; False if not given, the default of every such operand."""
        return self.has(name) and bool(self.tensor(name).item())

    def integers(self, name: str) -> list[int]:
        """The elements of a tensor of rank 1."""
        return [int(value) for value in self.tensor(name).flatten().tolist()]

    def optional_integers(self, name: str) -> list[int] | None:
        """The elements of a tensor of rank 1, or None."""
        return self.integers(name) if self.has(name) else None


#: Function that computes the result of an operation, or several results.
Rule = Callable[[Operands], "torch.Tensor | Sequence[torch.Tensor]"]


def _widened(value: Value) -> Value:
    if isinstance(value, torch.Tensor):
        return value.to(_WIDER.get(value.dtype, value.dtype))
    return value
