"""What a run trains, as one flat vector for each run: adapters, chosen weights, all weights, or integers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from research.accelerator.llama import Llama, Own, Shared, Weights
from research.accelerator.noise import Noise
from zoexport.core import int4

Draw = Callable[[int], Tensor]
"""Directions by step: float32 (seeds, q, n)."""


class Trained(abc.ABC):
    """Values that steps perturb and update.

    Attributes:
        initial: (n). together: whether all copies of a step fit in one forward pass.
    """

    initial: Tensor
    together = True

    @abc.abstractmethod
    def weights(self, values: Tensor) -> Weights:
        """What the model is called with: of values (groups, n)."""

    @abc.abstractmethod
    def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Draw:
        """Directions along which values are moved."""

    def moved(self, values: Tensor, directions: Sequence[Tensor], scale: float) -> Tensor:
        """Values (runs, n), each moved along a direction (n)."""
        found = torch.empty_like(values)
        for out, value, direction in zip(found, values, directions, strict=True):
            torch.add(value, direction, alpha=scale, out=out)
        return found

    def settled(self, values: Tensor) -> Tensor:
        """Values after an update, as they are stored."""
        return values


class Torch:
    """Normal numbers of PyTorch's own generator: as good, and sooner made than those of the specification.

    Args:
        shape: of a seed's numbers, such as (q, n).
    """

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._seeds, self._shape, self._device = seeds, shape, device

    def __call__(self, step: int) -> Tensor:
        """float32 (seeds, *shape)."""
        drawn = torch.empty(len(self._seeds), *self._shape, device=self._device)
        for seed, values in zip(self._seeds, drawn, strict=True):
            values.normal_(generator=generator(self._device, seed, step))
        return drawn


def generator(device: torch.device, seed: int, step: int) -> torch.Generator:
    """Of a step of a run."""
    return torch.Generator(device).manual_seed((seed << 32) + step)


class Adapters(Trained):
    """LoRA's second matrices, the first ones frozen (LoRA-FA).

    Args:
        model: the weights that adapters are added to.
        first: A (inputs, rank) by the path of a layer, in the order of tensor ids.
        scale: alpha over rank.
    """

    def __init__(self, model: Llama, first: Mapping[str, Tensor], scale: float) -> None:
        self._model, self._scale = model, scale
        self._first = {f"{name}.weight": a for name, a in first.items()}
        self._shapes = {
            name: (a.shape[1], model.parameters[name].shape[0]) for name, a in self._first.items()
        }
        self._sizes = [rank * outputs for rank, outputs in self._shapes.values()]
        self._device = next(iter(first.values())).device
        self.initial = torch.zeros(sum(self._sizes), device=self._device)

    def weights(self, values: Tensor, first: Mapping[str, Tensor] | None = None) -> Weights:
        """Also with first matrices of each group, (groups, inputs, rank) by the name of a weight."""
        return _Adapted(
            self._model.parameters, first or self._first, self.parts(values), self._scale
        )

    def parts(self, values: Tensor) -> dict[str, Tensor]:
        """B (groups, rank, outputs) by the name of a weight."""
        parts = values.split(self._sizes, -1)
        return {
            name: part.view(-1, *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }

    def firsts(self, groups: int) -> dict[str, Tensor]:
        """A copy of A for each group, (groups, inputs, rank) by the name of a weight."""
        return {name: a.repeat(groups, 1, 1) for name, a in self._first.items()}

    def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Draw:
        """A slot an adapter."""
        return Noise([*enumerate(self._sizes)], seeds, queries, self._device, signs=signs)


class _Adapted(Shared):
    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        first: Mapping[str, Tensor],
        second: Mapping[str, Tensor],
        scale: float,
    ) -> None:
        super().__init__(parameters)
        self._first, self._second, self._scale = first, second, scale

    def product(self, name: str, x: Tensor) -> Tensor:
        y = super().product(name, x)
        if name not in self._second:
            return y
        return y.baddbmm_(x @ self._first[name], self._second[name], alpha=self._scale)


class Chosen(Trained):
    """Chosen elements of linear weights, in fp16 (SensZOQ).

    Args:
        model: zero at the chosen places.
        places: int64 (k), ``row * columns + column``, by the name of a weight, in the order of their values.
        initial: fp16 values of all of them, as float32.
    """

    def __init__(self, model: Llama, places: Mapping[str, Tensor], initial: Tensor) -> None:
        self._model, self.initial = model, initial
        self._places = {
            name: (place // columns, place % columns)
            for name, place in places.items()
            for columns in [model.parameters[name].shape[1]]
        }
        self._sizes = [len(place) for place in places.values()]

    def weights(self, values: Tensor) -> Weights:
        """The model beside which the elements are multiplied."""
        parts = dict(zip(self._places, values.split(self._sizes, -1), strict=True))
        return _Sparse(self._model.parameters, self._places, parts)

    def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Draw:
        """One slot, of all elements."""
        slots = [(0, len(self.initial))]
        return Noise(slots, seeds, queries, self.initial.device, signs=signs)

    def settled(self, values: Tensor) -> Tensor:
        """Rounded to fp16."""
        return values.half().float()


class _Sparse(Shared):
    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        places: Mapping[str, tuple[Tensor, Tensor]],
        values: Mapping[str, Tensor],
    ) -> None:
        super().__init__(parameters)
        self._places, self._values = places, values

    def product(self, name: str, x: Tensor) -> Tensor:
        y = super().product(name, x)
        if name not in self._places or not len(self._places[name][0]):
            return y
        rows, columns = self._places[name]
        return y.index_add_(2, rows, x[..., columns] * self._values[name][:, None])


class Everything(Trained):
    """All weights of a model (MeZO without adapters), or those of these names."""

    together = False

    def __init__(self, model: Llama, names: Sequence[str] | None = None) -> None:
        names = [*model.parameters] if names is None else names
        self._shapes = {name: model.parameters[name].shape for name in names}
        self.initial = torch.cat([model.parameters[name].flatten() for name in names])

    def weights(self, values: Tensor) -> Weights:
        """A model of each group's own."""
        return Own({}, self.parts(values))

    def parts(self, values: Tensor) -> dict[str, Tensor]:
        """Weights (groups, ...) by name."""
        parts = values.split([shape.numel() for shape in self._shapes.values()], -1)
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(-1, *shape) for (name, shape), part in named}

    def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Draw:
        """Not of the specification, whose numbers would take longer to make than the step."""
        if signs:
            raise ValueError("expected a method with normal directions")
        return Torch(seeds, (queries, len(self.initial)), self.initial.device)


class Integers(Trained):
    """Integers of all linear weights, as float32 (QuZO, equations 5, 8 and 15).

    Args:
        model: in its weights, which are quantized again.
        names: of the linear weights. bits: 4, in groups of 32, or 8, by output channel.
    """

    together = False

    def __init__(self, model: Llama, names: Sequence[str], bits: int) -> None:
        self._model = model
        self._shapes = {name: model.parameters[name].shape for name in names}
        codes, self._scales = [], {}
        for name in names:
            weight = model.parameters[name].cpu()
            code, scale = int4.quantize_int4(weight) if bits == 4 else int4.quantize_int8(weight)
            codes.append((int4.unpack_int4(code) if bits == 4 else code).flatten())
            scale = scale.float().view(len(weight), -1, 1)
            self._scales[name] = scale.to(model.parameters[name].device)
        device = model.parameters[names[0]].device
        self.initial = torch.cat(codes).to(device).float()
        self.limits = (-8, 7) if bits == 4 else (-127, 127)

    def weights(self, values: Tensor) -> Weights:
        """Integers times their scales."""
        parts = values.split([shape.numel() for shape in self._shapes.values()], -1)
        own = {}
        for (name, shape), part in zip(self._shapes.items(), parts, strict=True):
            scale = self._scales[name]
            own[name] = part.view(-1, *scale.shape[:2], part.shape[-1] // scale.numel()) * scale
            own[name] = own[name].view(-1, *shape)
        return Own(self._model.parameters, own)

    def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Draw:
        """Not of the specification, whose numbers would take longer to make than the step."""
        if signs:
            raise ValueError("expected a method with normal directions")
        return Torch(seeds, (queries, len(self.initial)), self.initial.device)

    def moved(self, values: Tensor, directions: Sequence[Tensor], scale: float) -> Tensor:
        """Clamped to the integers that there are."""
        return super().moved(values, directions, scale).clamp_(*self.limits)
