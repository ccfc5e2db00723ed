"""PEFT's files: ``adapter_config.json`` and ``adapter_model.safetensors``. PEFT itself is not imported.

A slot ``lora_A.<module>`` (in, rank) is PEFT's ``base_model.model.<module>.lora_A.weight`` (rank, in), and
``lora_B.<module>`` (rank, out) is its ``lora_B.weight`` (out, rank).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zoexport.adapters.formats import AdapterSettings, Slots, slot_modules
from zoexport.core.errors import StateError, first_line
from zoexport.core.files import atomic_file, atomic_folder
from zoexport.core.types import Slot

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_PREFIX = "base_model.model."
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

Array = np.ndarray[Any, np.dtype[np.float32]]


class PeftFormat:
    """What ``peft.PeftModel.from_pretrained`` loads and ``save_pretrained`` writes."""

    name = "peft"
    summary = "adapter_config.json and adapter_model.safetensors, for PEFT and what reads its files"

    def write(
        self, slots: Slots, settings: AdapterSettings, folder: Path, *, replace: bool = False
    ) -> None:
        """Write the two files, see :class:`~zoexport.adapters.AdapterFormat`."""
        from safetensors.numpy import save

        tensors = {}
        for module in sorted(slot_modules(slots)):
            for half in ("lora_A", "lora_B"):
                values = np.asarray(slots[f"{half}.{module}"], dtype=np.float32)
                tensors[f"{_PREFIX}{module}.{half}.weight"] = np.ascontiguousarray(values.T)
        with atomic_folder(folder, replace=replace) as output:
            write_config(output, settings)
            # PEFT refuses files that do not say which framework's layout they have.
            (output / WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))

    def read(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]], settings: AdapterSettings
    ) -> dict[str, Array]:
        """Read the two files, see :class:`~zoexport.adapters.AdapterFormat`."""
        content = _read_config(folder)
        _check_config(folder / CONFIG, content, settings)
        tensors = _read_weights(folder / WEIGHTS)
        _check_names(folder / WEIGHTS, tensors, shapes)
        slots: dict[str, Array] = {}
        for name, shape in shapes.items():
            values = np.ascontiguousarray(tensors[name].T)
            if values.shape != tuple(shape):
                _refuse(
                    f"{folder / WEIGHTS}, {_key(name)}",
                    found=f"the shape {tensors[name].shape}",
                    expected=f"{tuple(reversed(shape))}, as the bundle has it",
                    fix="Use an adapter for the same base model and rank.",
                )
            if not np.isfinite(values).all():
                _refuse(
                    f"{folder / WEIGHTS}, {_key(name)}",
                    found="values that are not finite",
                    expected="finite numbers",
                    fix="Use an adapter from a run that did not diverge.",
                )
            slots[name] = values
        return slots


def write_config(folder: Path, settings: AdapterSettings) -> None:
    """Write ``adapter_config.json`` alone.

    Raises:
        ConfigError: the place cannot be written.
    """
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
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    with atomic_file(folder / CONFIG) as temporary:
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def write_peft_config(
    folder: Path, slots: Sequence[Slot], settings: Mapping[str, Any], loaded: Any
) -> None:
    """Write a bundle's ``adapter_config.json``.

    Args:
        folder: of the bundle.
        slots: of the training graph.
        settings: of the compile, by key.
        loaded: the :class:`~zoexport.models.LoadedModel`.
    """
    modules = slot_modules(slot.name for slot in slots)
    write_config(
        folder,
        AdapterSettings(
            rank=int(settings["lora.rank"]),
            alpha=float(settings["lora.alpha"]),
            base_model=loaded.base,
            target_modules=tuple(target_modules(loaded.model, modules)),
            fan_in_fan_out=loaded.fan_in_fan_out,
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
    content = _read_config(folder)
    try:
        return AdapterSettings(
            rank=int(content["r"]),
            alpha=float(content["lora_alpha"]),
            base_model=str(content.get("base_model_name_or_path") or ""),
            target_modules=tuple(content["target_modules"]),
            fan_in_fan_out=bool(content.get("fan_in_fan_out", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{folder / CONFIG}",
            found=f"no usable LoRA description ({type(error).__name__}: {first_line(error)})",
            expected="r, lora_alpha and target_modules",
            fix="Use the file that zoexport or PEFT wrote.",
        ) from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"bad JSON ({error})"
        raise StateError(
            f"{path}",
            found=str(reason).lower() if isinstance(error, OSError) else str(reason),
            expected=f"a PEFT adapter: {CONFIG} and {WEIGHTS}",
            fix="Name the folder that PEFT's save_pretrained wrote.",
        ) from error
    if not isinstance(content, dict):
        _refuse(
            f"{path}",
            found=f"a JSON {type(content).__name__}",
            expected="an object",
            fix="Use the file that PEFT wrote.",
        )
    return content


def _check_config(path: Path, content: dict[str, Any], settings: AdapterSettings) -> None:
    kind = content.get("peft_type")
    if kind != "LORA":
        _refuse(
            f"{path}",
            found=f"the peft_type {kind!r}",
            expected="'LORA'",
            fix="Only LoRA adapters can be imported.",
        )
    for key, unit in (("r", settings.rank), ("lora_alpha", settings.alpha)):
        if content.get(key) != unit:
            setting = "lora.rank" if key == "r" else "lora.alpha"
            _refuse(
                f"{path}, {key!r}",
                found=f"{content.get(key)!r}",
                expected=f"{unit:g}, as the bundle was compiled",
                fix=f"Compile the model with --set {setting}={content.get(key)}.",
            )
    unsupported = [key for key in _UNSUPPORTED if content.get(key)]
    if content.get("bias", "none") != "none":
        unsupported.append("bias")
    if content.get("init_lora_weights", True) not in _PLAIN_INITIALIZATIONS:
        unsupported.append("init_lora_weights")
    if unsupported:
        _refuse(
            f"{path}",
            found=", ".join(f"{key}={content[key]!r}" for key in unsupported),
            expected="plain LoRA: two matrices a layer, scaled by alpha / rank",
            fix="Train the adapter without these options.",
        )


def _read_weights(path: Path) -> dict[str, Array]:
    """Every tensor by its slot's name, or by its own where it is no half of an adapter; still as PEFT has it."""
    import safetensors

    library: Any = safetensors  # its functions carry no types
    try:
        entries = library.deserialize(path.read_bytes())
    except (OSError, library.SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise StateError(
            f"{path}",
            found=reason.lower() if reason else f"a damaged file ({first_line(error)})",
            expected="the weights of a PEFT adapter",
            fix="Export the adapter again, with safetensors.",
        ) from error
    return {_slot_name(name): _array(path, name, entry) for name, entry in entries}


def _array(path: Path, name: str, entry: dict[str, Any]) -> Array:
    # safetensors' numpy reader has no bfloat16: it is the upper half of a float32.
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
    kind = entry["dtype"]
    if kind not in kinds:
        _refuse(
            f"{path}, {name}",
            found=f"the type {kind}",
            expected="one of " + ", ".join(kinds),
            fix="Save the adapter in a floating-point type.",
        )
    values = np.frombuffer(entry["data"], dtype=kinds[kind])
    if kind == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32).reshape(entry["shape"])


def _slot_name(name: str) -> str:
    """``lora_A.<module>`` for PEFT's name of it, also with an adapter's name in it; others unchanged."""
    module, dot, rest = name.removeprefix(_PREFIX).partition(".lora_")
    half = rest.split(".")[0]
    plain = rest in (f"{half}.weight", f"{half}.default.weight")
    return f"lora_{half}.{module}" if dot and half in ("A", "B") and plain else name


def _key(slot: str) -> str:
    half, _, module = slot.partition(".")
    return f"{_PREFIX}{module}.{half}.weight"


def _check_names(
    path: Path, tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    for names, found in (
        ([_key(name) for name in shapes if name not in tensors], "no"),
        ([_key(n) if n.startswith("lora_") else n for n in tensors if n not in shapes], "also"),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            modules = slot_modules(shapes)
            _refuse(
                f"{path}",
                found=f"{found} {names[0]}{more}",
                expected=f"the {len(modules)} layers that the bundle adapts, such as {modules[0]}",
                fix="Compile the model with the adapter's layers (--set lora.targets=..., lora.layers=...).",
            )


def _refuse(where: str, *, found: str, expected: str, fix: str) -> NoReturn:
    raise StateError(where, found=found, expected=expected, fix=fix)
