"""llama.cpp's adapters: one GGUF file, which it loads beside a model's (``--lora``).

A slot ``lora_A.<module>`` (in, rank) is the tensor ``<weight>.lora_a`` (rank, in) and ``lora_B.<module>`` (rank, out)
is ``<weight>.lora_b`` (out, rank), where <weight> is llama.cpp's name of the layer and the rows of B are in llama.cpp's
order (``llama_cpp_names``). It scales by alpha / rank, and takes the rank from the tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from zoexport.adapters.files import Array, check_finite, check_names, check_number, refuse
from zoexport.adapters.formats import AdapterSettings, Slots, slot_modules
from zoexport.adapters.gguf_file import BadGgufError, GgufFile, open_gguf
from zoexport.adapters.llama_cpp_names import Heads, architecture, row_order, tensor_names
from zoexport.core.errors import ConfigError, StateError, first_line, nearest
from zoexport.core.files import atomic_file, refuse_existing

OUTTYPES = ("f32", "f16", "q8_0")
"""What numbers a file can have."""
_WORD = "an adapter of llama.cpp: one GGUF file"
_ALORA = "adapter.alora.invocation_tokens"


@dataclasses.dataclass(frozen=True)
class GgufFormat:
    """What ``llama-cli --lora`` loads and llama.cpp's convert_lora_to_gguf.py writes.

    Attributes:
        outtype: one of :data:`OUTTYPES`. Rows that are no multiple of 32, as those of B often are, are f16 where it is
            ``q8_0``, as in llama.cpp's own files.
    """

    outtype: str = "f32"

    name = "gguf"
    summary = "one GGUF file, for llama.cpp and what is built on it"

    def with_outtype(self, outtype: str) -> GgufFormat:
        """The format with other numbers.

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
            ConfigError: as there, or a number is beyond the range of ``outtype``.
        """
        import gguf

        layers = _layers(settings, {name: tuple(values.shape) for name, values in slots.items()})
        refuse_existing(path, replace=replace)
        with atomic_file(path) as temporary:
            writer = gguf.GGUFWriter(str(temporary), layers.architecture)
            writer.add_type(gguf.GGUFType.ADAPTER)
            writer.add_file_type(_FILE_TYPES[self.outtype])
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            if settings.base_model:
                writer.add_base_model_count(1)
                writer.add_base_model_name(0, settings.base_model)
            writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
            writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, settings.alpha)
            for slot, name in sorted(layers.tensors.items(), key=lambda pair: pair[1]):
                values = layers.out(slot, np.asarray(slots[slot], dtype=np.float32))
                encoded, kind = self._encoded(name, values)
                writer.add_tensor(name, encoded, raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, Array]:
        """Read such a file of any of its types, see :class:`~zoexport.adapters.AdapterFormat`."""
        layers = _layers(settings, shapes)
        try:
            file = open_gguf(path)
            _check_fields(file, layers.architecture)
            slots = {name: slot for slot, name in layers.tensors.items()}
            names = {slots.get(name, name): name for name in file.tensors}
            check_names(path, names, shapes, layers.tensors.__getitem__)
            _check_numbers(file, layers.tensors, settings)
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
        return found

    def _encoded(self, name: str, values: Array) -> tuple[NDArray[Any], Any]:
        """What a writer is given for a tensor: its values, and their type where they do not say it."""
        import gguf

        if self.outtype == "f32":
            return values, None
        kinds = gguf.GGMLQuantizationType
        quantized = self.outtype == "q8_0" and values.shape[-1] % _Q8_0_BLOCK == 0
        kind = kinds.Q8_0 if quantized else kinds.F16
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            encoded: NDArray[Any] = gguf.quantize(values, kind)
            fits = np.isfinite(gguf.dequantize(encoded.view(np.uint8), kind)).all()
        if not fits and np.isfinite(values).all():
            raise ConfigError(
                f"outtype {self.outtype!r}",
                found=f"{np.abs(values).max():g} in {name}",
                expected=f"numbers within {np.finfo(np.float16).max:g}, the largest of float16",
                fix="Use --outtype f32.",
            )
        return encoded, kind


_Q8_0_BLOCK = 32
_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7}
"""llama.cpp's numbers of whole files' types."""


@dataclasses.dataclass(frozen=True)
class _Layers:
    """Where the slots are in a file.

    Attributes:
        architecture: llama.cpp's name of it.
        tensors: by slot. orders: of B's rows, by slot, where they have another order.
    """

    architecture: str
    tensors: dict[str, str]
    orders: dict[str, NDArray[np.int64]]

    def out(self, slot: str, values: Array) -> Array:
        """A slot as the file has it."""
        rows = values.T
        order = self.orders.get(slot)
        return np.ascontiguousarray(rows if order is None else rows[order])

    def back(self, slot: str, rows: Array) -> Array:
        """The file's tensor as a slot."""
        order = self.orders.get(slot)
        if order is not None:
            rows = rows[np.argsort(order)]
        return np.ascontiguousarray(rows.T)


def _layers(settings: AdapterSettings, shapes: Mapping[str, tuple[int, ...]]) -> _Layers:
    import gguf

    kind = architecture(settings.architecture)
    heads = None if settings.heads is None else Heads(*settings.heads)
    tensors: dict[str, str] = {}
    orders: dict[str, NDArray[np.int64]] = {}
    for module, weight in tensor_names(kind, slot_modules(shapes)).items():
        a, b = f"lora_A.{module}", f"lora_B.{module}"
        tensors |= {a: f"{weight}.lora_a", b: f"{weight}.lora_b"}
        order = row_order(kind, module, (shapes[b][1], shapes[a][0]), heads)
        if order is not None:
            orders[b] = order
    name = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[kind.name]]
    return _Layers(name, tensors, orders)


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


def _check_numbers(file: GgufFile, tensors: Mapping[str, str], settings: AdapterSettings) -> None:
    """Compare rank and alpha, before shapes of layers are."""
    name = next(name for slot, name in tensors.items() if slot.startswith("lora_A."))
    rank = file.tensors[name].shape[0]
    check_number(f"{file.path}, the rank of {name}", rank, settings.rank, "lora.rank")
    # llama.cpp scales by 1 where there is no alpha.
    alpha = file.fields.get("adapter.lora.alpha") or rank
    check_number(f"{file.path}, adapter.lora.alpha", alpha, settings.alpha, "lora.alpha")


def _unreadable(path: Path, reason: str, error: Exception) -> NoReturn:
    raise StateError(
        f"{path}",
        found=reason,
        expected=_WORD,
        fix="Name the file that zoexport or llama.cpp wrote.",
    ) from error
