"""PEFT's files: ``adapter_config.json`` and ``adapter_model.safetensors``. PEFT itself is not imported.

A slot ``lora_A.<module>`` (in, rank) is PEFT's ``base_model.model.<module>.lora_A.weight`` (rank, in), and
``lora_B.<module>`` (rank, out) is its ``lora_B.weight`` (out, rank).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.adapters.files import (
    CONFIG,
    Array,
    Layout,
    check_number,
    json_text,
    read_config,
    read_slots,
    refuse,
)
from zoexport.adapters.formats import AdapterSettings, Slots, adapted_modules
from zoexport.adapters.writing import write_peft
from zoexport.core.errors import StateError, first_line
from zoexport.core.files import atomic_file
from zoexport.core.types import Slot

_PREFIX = "base_model.model."
_CAUSAL = "CAUSAL_LM"
# Settings under which the two matrices are not the whole adapter, or mean something else.
_UNSUPPORTED = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
# Initializations that leave the base model as it is; the others move a part of it into the adapter.
_PLAIN_INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")


def _key(slot: str) -> str:
    half, _, module = slot.partition(".")
    return f"{_PREFIX}{module}.{half}.weight"


def _slot_name(name: str) -> str:
    """``lora_A.<module>`` for PEFT's name of it, also with an adapter's name in it; others unchanged."""
    module, dot, rest = name.removeprefix(_PREFIX).partition(".lora_")
    half = rest.split(".")[0]
    plain = rest in (f"{half}.weight", f"{half}.default.weight")
    return f"lora_{half}.{module}" if dot and half in ("A", "B") and plain else name


_LAYOUT = Layout("PEFT", "adapter_model.safetensors", _key, _slot_name, transposed=True)


class PeftFormat:
    """What ``peft.PeftModel.from_pretrained`` loads and ``save_pretrained`` writes."""

    name = "peft"
    summary = "adapter_config.json and adapter_model.safetensors, for PEFT and what reads its files"

    def write(
        self, slots: Slots, settings: AdapterSettings, path: Path, *, replace: bool = False
    ) -> None:
        """Write the two files, see :class:`~zoexport.adapters.AdapterFormat`."""
        write_peft(path, slots, _description(settings), replace=replace)

    def read(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, Array]:
        """Read the two files, see :class:`~zoexport.adapters.AdapterFormat`."""
        _check_config(path / CONFIG, read_config(path, _LAYOUT), settings)
        return read_slots(path, shapes, _LAYOUT)


def _description(settings: AdapterSettings) -> str:
    """The text of ``adapter_config.json``."""
    content = {
        "base_model_name_or_path": settings.base_model,
        "bias": "none",
        "fan_in_fan_out": settings.fan_in_fan_out,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": int(settings.alpha)
        if settings.alpha == int(settings.alpha)
        else settings.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": settings.rank,
        "revision": None,
        "target_modules": list(settings.target_modules),
        # PEFT has no task of masked language models: without one it wraps whatever model it is given.
        "task_type": _CAUSAL if settings.causal else None,
        "use_dora": False,
        "use_rslora": False,
    }
    return json_text(content)


def write_config(folder: Path, settings: AdapterSettings) -> None:
    """Write ``adapter_config.json`` alone.

    Raises:
        ConfigError: the place cannot be written.
    """
    with atomic_file(folder / CONFIG) as temporary:
        temporary.write_text(_description(settings), encoding="utf-8")


def write_peft_config(
    folder: Path, slots: Sequence[Slot], settings: Mapping[str, Any], loaded: Any
) -> None:
    """Write a bundle's ``adapter_config.json``, where it has adapters.

    Args:
        folder: of the bundle.
        slots: of the training graph.
        settings: of the compile, by key.
        loaded: the :class:`~zoexport.models.LoadedModel`.
    """
    modules = adapted_modules(slots)
    if not modules:
        return
    write_config(
        folder,
        AdapterSettings(
            rank=int(settings["lora.rank"]),
            alpha=float(settings["lora.alpha"]),
            base_model=loaded.base,
            target_modules=tuple(target_modules(loaded.model, modules)),
            fan_in_fan_out=loaded.fan_in_fan_out,
            causal=not loaded.masked,
        ),
    )


def target_modules(model: Any, modules: Sequence[str]) -> list[str]:
    """PEFT's ``target_modules`` that match exactly ``modules``.

    Short names (``q_proj``) where they match no other layer of the model, whole paths otherwise, as when only
    the last layers are adapted.
    """
    names = sorted({module.rpartition(".")[2] for module in modules})
    matched = {path for path, _ in model.named_modules() if path.rpartition(".")[2] in names}
    return names if matched == set(modules) else list(modules)


def read_settings(folder: Path) -> AdapterSettings:
    """The settings of a bundle's (or an adapter's) ``adapter_config.json``.

    Raises:
        StateError: the file is missing or is no LoRA description.
    """
    content = read_config(folder, _LAYOUT)
    try:
        rank, targets = int(content["r"]), content["target_modules"]
        if rank < 1:
            raise ValueError(f"a rank of {rank}")
        if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
            raise TypeError("target_modules that are no list of names")
        return AdapterSettings(
            rank=rank,
            alpha=float(content["lora_alpha"]),
            base_model=str(content.get("base_model_name_or_path") or ""),
            target_modules=tuple(targets),
            fan_in_fan_out=bool(content.get("fan_in_fan_out", False)),
            causal=content.get("task_type", _CAUSAL) == _CAUSAL,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{folder / CONFIG}",
            found=f"no usable LoRA description ({type(error).__name__}: {first_line(error)})",
            expected="r, lora_alpha and target_modules",
            fix="Use the file that zoexport or PEFT wrote.",
        ) from error


def _check_config(path: Path, content: dict[str, Any], settings: AdapterSettings) -> None:
    kind = content.get("peft_type")
    if kind != "LORA":
        refuse(
            f"{path}",
            found=f"the peft_type {kind!r}",
            expected="'LORA'",
            fix="Only LoRA adapters can be imported.",
        )
    check_number(f"{path}, 'r'", content.get("r"), settings.rank, "lora.rank")
    check_number(f"{path}, 'lora_alpha'", content.get("lora_alpha"), settings.alpha, "lora.alpha")
    unsupported = [key for key in _UNSUPPORTED if content.get(key)]
    if content.get("bias", "none") != "none":
        unsupported.append("bias")
    if content.get("init_lora_weights", True) not in _PLAIN_INITIALIZATIONS:
        unsupported.append("init_lora_weights")
    if unsupported:
        refuse(
            f"{path}",
            found=", ".join(f"{key}={content[key]!r}" for key in unsupported),
            expected="plain LoRA: two matrices a layer, scaled by alpha / rank",
            fix="Train the adapter without these options.",
        )
