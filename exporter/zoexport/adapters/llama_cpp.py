"""llama.cpp's adapters: one GGUF file, loaded in addition to the model (``--lora``).

A slot ``lora_A.<module>`` (in, rank) is the tensor ``<weight>.lora_a`` (rank, in) and ``lora_B.<module>`` (rank, out)
is ``<weight>.lora_b`` (out, rank), where <weight> is llama.cpp's name of the layer and the rows of B are in llama.cpp's
order (``llama_cpp_names``). The scale is alpha / rank, with one alpha per file and the rank of the
tensors. If a layer has a larger alpha, its B is multiplied by the ratio, a power of two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import Array, check_finite, check_names, check_number, refuse
from zoexport.adapters.formats import (
    AdapterSettings,
    Slots,
    adapted_modules,
    slot_modules,
)
from zoexport.adapters.gguf_file import BadGgufError, GgufFile, open_gguf
from zoexport.adapters.llama_cpp_names import Heads, names_of, rows_of
from zoexport.adapters.native import OUTTYPES, write_gguf
from zoexport.adapters.one_scale import inverse, one_scale, scaled
from zoexport.core.errors import ConfigError, StateError, first_line, nearest
from zoexport.core.graph import Slot
from zoexport.core.lora_scaling import LoraScaling

_WORD = "an adapter of llama.cpp: one GGUF file"
_ALORA = "adapter.alora.invocation_tokens"


@dataclasses.dataclass(frozen=True)
class GgufFormat:
    """Format that ``llama-cli --lora`` loads and llama.cpp's convert_lora_to_gguf.py writes.

    Attributes:
        outtype: one of :data:`OUTTYPES`. With ``q8_0``, rows whose length is not a multiple of 32
            (often those of B) are f16, as in llama.cpp's own files.
    """

    outtype: str = "f32"

    name = "gguf"
    summary = "one GGUF file, for llama.cpp and what is built on it"

    def with_outtype(self, outtype: str) -> GgufFormat:
        """Return the format with another data type.

        Raises:
            ConfigError: ``outtype`` is none of :data:`OUTTYPES`.
        """
        if outtype not in OUTTYPES:
            raise ConfigError(
                f"outtype {outtype!r}",
                found="no such type",
                expected="one of " + ", ".join(OUTTYPES),
                fix=f"Choose one of them.{nearest(outtype, OUTTYPES)}",
            )
        return dataclasses.replace(self, outtype=outtype)

    def write(
        self, slots: Slots, settings: AdapterSettings, path: Path, *, replace: bool = False
    ) -> None:
        """Write the file, see :class:`~zoexport.adapters.AdapterFormat`.

        Raises:
            ConfigError: see there; or a value is out of the range of ``outtype``.
        """
        names = _names(settings, _shapes(slots))
        alpha, factors = _shared(settings, slot_modules(slots))
        write_gguf(
            path,
            scaled(slots, factors),
            names,
            alpha,
            base_model=settings.base_model,
            outtype=self.outtype,
            replace=replace,
        )

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, Array]:
        """Read such a file of any of its types, see :class:`~zoexport.adapters.AdapterFormat`."""
        layers = _layers(settings, shapes)
        alpha, factors = _shared(settings, slot_modules(shapes))
        try:
            file = open_gguf(path)
            _check_fields(file, layers.architecture)
            slots = {name: slot for slot, name in layers.tensors.items()}
            names = {slots.get(name, name): name for name in file.tensors}
            check_names(path, names, shapes, layers.tensors.__getitem__)
            _check_ranks(file, layers.tensors, settings.scaling)
            _check_alpha(file, alpha, settings.alpha / alpha)
            found: dict[str, Array] = {}
            for slot, shape in shapes.items():
                name = layers.tensors[slot]
                expected, tensor = tuple(reversed(shape)), file.tensors[name].shape
                if tensor != expected:
                    refuse(
                        f"{path}, {name}",
                        found=f"the shape {tensor}",
                        expected=f"{expected}, as the bundle has it",
                        fix="Use an adapter for the same base model and rank.",
                    )
                found[slot] = layers.back(slot, file.read(name))
                check_finite(f"{path}, {name}", found[slot])
        except (BadGgufError, OSError) as error:
            reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else ""
            _unreadable(path, reason or first_line(error), error)
        return scaled(found, inverse(factors))


def _shared(settings: AdapterSettings, modules: Sequence[str]) -> tuple[float, dict[str, float]]:
    """Return the file's alpha, and the factor of each module's B."""
    alphas = {module: settings.scaling.plain_alpha_of(module) for module in modules}
    return one_scale(alphas, "gguf", "the alpha")


def _shapes(slots: Slots) -> dict[str, tuple[int, ...]]:
    return {name: tuple(values.shape) for name, values in slots.items()}


def _names(settings: AdapterSettings, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """Return llama.cpp's layer names from the manifest, or from ``names_of`` if it has none.

    Raises:
        ConfigError: llama.cpp has no name for the model or a layer.
    """
    modules = slot_modules(shapes)
    names = settings.llama_cpp
    if names is None or "problem" in names:
        heads = None if settings.heads is None else Heads(*settings.heads)
        sizes = {m: (shapes[f"lora_B.{m}"][1], shapes[f"lora_A.{m}"][0]) for m in modules}
        return names_of(settings.architecture, sizes, heads)
    for module in modules:
        if module not in names["layers"]:
            raise _unfit(f"no name for {module}")
    return names


def _unfit(found: str) -> ConfigError:
    return ConfigError(
        "model.llama_cpp in the bundle's manifest",
        found=found,
        expected="names of llama.cpp for the layers that the bundle adapts",
        fix="Compile the model again; the bundle's manifest does not fit its slots.",
    )


@dataclasses.dataclass(frozen=True)
class _Layers:
    """Names and row orders of the tensors in a file.

    Attributes:
        architecture: llama.cpp's name of the architecture.
        tensors: names by state tensor. orders: row orders of B by state tensor, if they differ.
    """

    architecture: str
    tensors: dict[str, str]
    orders: dict[str, NDArray[np.int64]]

    def back(self, slot: str, rows: Array) -> Array:
        """Convert a tensor of the file to a state tensor."""
        order = self.orders.get(slot)
        if order is not None:
            rows = rows[np.argsort(order)]
        return np.ascontiguousarray(rows.T)


def _layers(settings: AdapterSettings, shapes: Mapping[str, tuple[int, ...]]) -> _Layers:
    names = _names(settings, shapes)
    tensors: dict[str, str] = {}
    orders: dict[str, NDArray[np.int64]] = {}
    for module in slot_modules(shapes):
        layer = names["layers"][module]
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        tensors |= {a: f"{layer['weight']}.lora_a", b: f"{layer['weight']}.lora_b"}
        if "order" in layer:
            rows = rows_of(layer["order"], shapes[b][1])
            if rows is None:
                raise _unfit(f"another order than the {shapes[b][1]} outputs of {module} have")
            orders[b] = rows
    return _Layers(names["architecture"], tensors, orders)


def llama_cpp_entry(
    slots: Sequence[Slot], loaded: Any, heads: Mapping[str, int] | None
) -> dict[str, Any]:
    """Return ``llama_cpp`` of a manifest's ``model``: names or a problem; empty without adapters.

    Args:
        slots: state of the training graph. loaded: the :class:`~zoexport.models.LoadedModel`.
        heads: ``attention_heads`` of the manifest, or None.
    """
    layers = {module: loaded.model.get_submodule(module) for module in adapted_modules(slots)}
    if not layers:
        return {}
    sizes = {module: (layer.out_features, layer.in_features) for module, layer in layers.items()}
    try:
        return {
            "llama_cpp": names_of(
                loaded.architecture, sizes, None if heads is None else Heads(**heads)
            )
        }
    except ConfigError as error:
        return {"llama_cpp": {"problem": error.found}}


def _check_fields(file: GgufFile, architecture: str) -> None:
    for field, expected, fix in (
        ("general.type", "adapter", "Name the adapter's file; a whole model is none."),
        ("adapter.type", "lora", "Only LoRA adapters can be imported."),
        ("general.architecture", architecture, "Use an adapter for the bundle's model."),
    ):
        found = file.fields.get(field)
        if found != expected:
            refuse(
                f"{file.path}, {field}",
                found="nothing" if found is None else repr(found)[:80],
                expected=repr(expected),
                fix=fix,
            )
    if _ALORA in file.fields:
        refuse(
            f"{file.path}",
            found=_ALORA,
            expected="plain LoRA: two matrices a layer, scaled by alpha / rank",
            fix="Train the adapter without these options.",
        )


def _check_ranks(file: GgufFile, tensors: Mapping[str, str], scaling: LoraScaling) -> None:
    """Compare ranks, before the shapes of layers are compared."""
    for slot, name in tensors.items():
        half, _, module = slot.partition(".")
        if half == "lora_A":
            rank = file.tensors[name].shape[0]
            where = f"{file.path}, the rank of {name}"
            check_number(where, rank, scaling.rank_of(module), "lora.r")


def _check_alpha(file: GgufFile, alpha: float, setting_of_alpha: float) -> None:
    found = file.fields.get("adapter.lora.alpha")
    if not found:  # llama.cpp scales by 1 where there is none, which is no alpha where ranks differ
        ranks = {t.shape[0] for name, t in file.tensors.items() if name.endswith(".lora_a")}
        found = ranks.pop() if len(ranks) == 1 else None
    where = f"{file.path}, adapter.lora.alpha"
    check_number(where, found, alpha, "lora.alpha", setting_of_alpha)


def _unreadable(path: Path, reason: str, error: Exception) -> NoReturn:
    raise StateError(
        f"{path}",
        found=reason,
        expected=_WORD,
        fix="Name the file that zoexport or llama.cpp wrote.",
    ) from error
