"""mlx-lm's files: ``adapter_config.json`` and ``adapters.safetensors``, which MLX Swift's loader reads too.

Neither is imported. Their ``<module>.lora_a`` (in, rank) and ``<module>.lora_b`` (rank, out) equal
``lora_A.<module>`` and ``lora_B.<module>``. All layers have one ``rank`` and ``scale``: matrices
of a smaller rank are padded with zeros, and B is multiplied by powers of two of the scale.

The description does not list paths, but the number of last blocks with adapters (``num_layers``)
and the names of adapted layers inside a block (``keys``). Both loaders set ``lora_b`` of each
such layer to zero, then load the weights file. A layer without weights in the file adds nothing,
so the file may have different layers in different blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoexport.adapters.files import (
    CONFIG,
    Array,
    Layout,
    check_number,
    read_config,
    read_slots,
    refuse,
    tensors_of,
    write_json,
)
from zoexport.adapters.formats import AdapterSettings, Slots, slot_modules
from zoexport.adapters.one_scale import inverse, one_scale, scaled
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder

# Layers of blocks at this path have the names that transformers gives them. No rule covers the others: mlx-lm turns
# GPT-2's transformer.h and GPT-NeoX's gpt_neox.layers into model.h, and keeps GPTBigCode's transformer.h.
_BLOCKS = "model.layers"
_PATH = re.compile(rf"{re.escape(_BLOCKS)}\.(\d+)\.(.+)")


def _key(slot: str) -> str:
    half, _, module = slot.partition(".")
    return f"{module}.{half.lower()}"


def _slot_name(name: str) -> str:
    """Return ``lora_A.<module>`` for mlx-lm's name of it; other names are unchanged."""
    module, dot, half = name.rpartition(".lora_")
    return f"lora_{half.upper()}.{module}" if dot and half in ("a", "b") else name


WEIGHTS = "adapters.safetensors"
"""Name of the file with the matrices."""
_LAYOUT = Layout("mlx-lm", WEIGHTS, _key, _slot_name)


class MlxFormat:
    """Format of mlx-lm (``load(..., adapter_path=...)``) and MLX Swift's ``LoRAContainer``."""

    name = "mlx"
    summary = "adapter_config.json and adapters.safetensors, for mlx-lm and MLX Swift"

    def write(
        self, slots: Slots, settings: AdapterSettings, path: Path, *, replace: bool = False
    ) -> None:
        """Write the two files, see :class:`~zoexport.adapters.AdapterFormat`.

        The highest adapted block is assumed to be the model's last. If not, both loaders refuse
        the files: they find weights for layers without an adapter.
        """
        from safetensors.numpy import save

        modules = slot_modules(slots)
        num_layers, keys = _blocks(modules)
        rank, scale, factors = _shared(settings, modules)
        config = {
            "fine_tune_type": "lora",
            "lora_parameters": {
                "dropout": settings.dropout,
                "keys": keys,
                "rank": rank,
                "scale": scale,
            },
            "model": settings.base_model,
            "num_layers": num_layers,
        }
        filled = {
            name: _filled(name, values, rank) for name, values in scaled(slots, factors).items()
        }
        with atomic_folder(path, replace=replace) as output:
            write_json(output / CONFIG, config)
            (output / _LAYOUT.weights).write_bytes(save(tensors_of(filled, _LAYOUT)))

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, Array]:
        """Read the two files, see :class:`~zoexport.adapters.AdapterFormat`.

        ``num_layers`` and ``keys`` are ignored: the layers with weights count, and must match the
        bundle's.
        """
        modules = slot_modules(shapes)
        _blocks(modules)
        rank, scale, factors = _shared(settings, modules)
        described = read_config(path, _LAYOUT.tool, _LAYOUT.weights)
        _check_config(path / CONFIG, described, rank, scale, settings.alpha / scale)
        wanted = {
            name: (shape[0], rank) if name.startswith("lora_A.") else (rank, shape[1])
            for name, shape in shapes.items()
        }
        slots = read_slots(path, wanted, _LAYOUT)
        for name, (rows, columns) in shapes.items():
            cut = slots[name][:rows, :columns]
            if np.count_nonzero(cut) != np.count_nonzero(slots[name]):
                refuse(
                    f"{path / _LAYOUT.weights}, {_key(name)}",
                    found=f"an adapter of a rank above {min(cut.shape)}",
                    expected=f"zeros beyond the shape {cut.shape}, which the bundle has",
                    fix="Compile the model without lora.rank_pattern.",
                )
            slots[name] = np.ascontiguousarray(cut)
        return scaled(slots, inverse(factors))


def _shared(
    settings: AdapterSettings, modules: Sequence[str]
) -> tuple[int, float, dict[str, float]]:
    """Return the file's rank and scale, and the factor of each module's B."""
    scaling = settings.scaling
    scales = {module: scaling.scale_of(module) for module in modules}
    scale, factors = one_scale(scales, "mlx", "the scale")
    return max(scaling.rank_of(module) for module in modules), scale, factors


def _filled(name: str, values: Array, rank: int) -> Array:
    """Pad a matrix with zeros to a larger rank."""
    a = name.startswith("lora_A.")
    missing = rank - values.shape[1 if a else 0]
    return np.pad(values, ((0, 0), (0, missing)) if a else ((0, missing), (0, 0)))


def _blocks(modules: Iterable[str]) -> tuple[int, list[str]]:
    """Return ``num_layers`` and ``keys`` that cover the adapted modules.

    Raises:
        ConfigError: a module is outside the blocks, or mlx-lm may have another name for it.
    """
    blocks, keys = set(), set()
    for module in modules:
        match = _PATH.fullmatch(module)
        if match is None:
            raise ConfigError(
                "adapter format 'mlx'",
                found=f"the adapted layer {module}",
                expected=f"layers inside the blocks at {_BLOCKS}, as mlx-lm may call others differently",
                fix="Use --format peft, or a base model whose blocks are there, such as a Llama or a Qwen.",
            )
        blocks.add(int(match[1]))
        keys.add(match[2])
    return max(blocks) - min(blocks) + 1, sorted(keys)


def _check_config(
    path: Path, content: dict[str, Any], rank: int, scale: float, alpha_of_scale: float
) -> None:
    # mlx-lm assumes LoRA for a description without a type.
    kind = content.get("fine_tune_type", "lora")
    if kind != "lora":
        refuse(
            f"{path}",
            found=f"the fine_tune_type {kind!r}",
            expected="'lora'",
            fix="Only LoRA adapters can be imported.",
        )
    parameters = content.get("lora_parameters")
    if not isinstance(parameters, dict):
        refuse(
            f"{path}",
            found="a PEFT adapter" if "peft_type" in content else "no lora_parameters",
            expected="mlx-lm's description of a LoRA adapter",
            fix="Use --format peft."
            if "peft_type" in content
            else "Use the file that mlx-lm wrote.",
        )
    check_number(f"{path}, 'rank'", parameters.get("rank"), rank, "lora.r")
    check_number(f"{path}, 'scale'", parameters.get("scale"), scale, "lora.alpha", alpha_of_scale)
