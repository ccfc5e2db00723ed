"""PEFT's files: ``adapter_config.json`` and ``adapter_model.safetensors``. PEFT itself is not imported.

The session's library writes and reads them. A tensor ``lora_A.<module>`` (in, rank) is PEFT's
``base_model.model.<module>.lora_A.weight`` (rank, in), and ``lora_B.<module>`` (rank, out) its ``lora_B.weight``
(out, rank).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from zoexport.adapters.files import CONFIG, Array, json_text, read_config
from zoexport.adapters.formats import AdapterSettings, Slots, adapted_modules
from zoexport.adapters.native import read_peft, write_peft
from zoexport.core.errors import StateError, ZoExportError, first_line
from zoexport.core.files import atomic_file
from zoexport.core.graph import Slot
from zoexport.core.lora_scaling import LoraScaling, patterns_of

_CAUSAL = "CAUSAL_LM"
_N = TypeVar("_N", int, float)
WEIGHTS = "adapter_model.safetensors"
"""The file with the matrices."""
PICKLED = "adapter_model.bin"
"""The same, of PEFT before safetensors."""


class PeftFormat:
    """Format that ``peft.PeftModel.from_pretrained`` loads and ``save_pretrained`` writes."""

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
        with as_safetensors(path) as folder:
            return read_peft(folder, shapes, _description(settings))


@contextlib.contextmanager
def as_safetensors(folder: Path) -> Iterator[Path]:
    """Yield the folder of an adapter with ``adapter_model.safetensors``: a copy, if it only has ``adapter_model.bin``.

    Code inside pickled files is not run. Errors about the copy name the folder.

    Raises:
        StateError: the file cannot be read, or contains something other than tensors.
    """
    pickled = folder / PICKLED
    if (folder / WEIGHTS).exists() or not pickled.is_file():
        yield folder
        return
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory(prefix="zoexport-") as name:
        copy = Path(name)
        save_file(_unpickled(pickled), copy / WEIGHTS)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(folder / CONFIG, copy / CONFIG)
        try:
            yield copy
        except ZoExportError as error:
            where = error.where.replace(str(copy / WEIGHTS), str(pickled))
            found = error.found.replace(str(copy), str(folder))
            raise type(error)(
                where.replace(str(copy), str(folder)),
                found=found,
                expected=error.expected,
                fix=error.fix,
            ) from error


def _unpickled(file: Path) -> dict[str, Any]:
    """Load the tensors of a ``torch.save`` file, contiguous, without shared memory."""
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
        return {name: value.detach().clone().contiguous() for name, value in content.items()}
    except Exception as error:  # the unpickler raises many types for damaged files
        raise StateError(
            f"{file}",
            found=f"a file that torch cannot load with weights_only=True ({first_line(error)})",
            expected="the weights of an adapter of PEFT, by their names",
            fix="Save the adapter again, with safetensors.",
        ) from error


def _description(settings: AdapterSettings) -> str:
    """Return the text of ``adapter_config.json``."""
    content = {
        "alpha_pattern": {pattern: _number(n) for pattern, n in settings.alpha_pattern.items()},
        "base_model_name_or_path": settings.base_model,
        "bias": "none",
        "fan_in_fan_out": settings.fan_in_fan_out,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": _number(settings.alpha),
        "lora_dropout": settings.dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": settings.rank,
        "rank_pattern": dict(settings.rank_pattern),
        "revision": None,
        "target_modules": list(settings.target_modules),
        # PEFT has no task type for masked language models: without one, it wraps any model.
        "task_type": _CAUSAL if settings.causal else None,
        "use_dora": False,
        "use_rslora": settings.rslora,
    }
    return json_text(content)


def _number(alpha: float) -> int | float:
    return int(alpha) if alpha == int(alpha) else alpha


def write_config(folder: Path, settings: AdapterSettings) -> None:
    """Write ``adapter_config.json`` alone.

    Raises:
        ConfigError: the place cannot be written.
    """
    with atomic_file(folder / CONFIG) as temporary:
        temporary.write_text(_description(settings), encoding="utf-8")


def write_peft_config(folder: Path, slots: Sequence[Slot], config: Any, loaded: Any) -> None:
    """Write a bundle's ``adapter_config.json`` if it has adapters.

    Args:
        folder: folder of the bundle.
        slots: state of the training graph.
        config: settings of the compile; ``LoraSettings`` if the bundle has adapters.
        loaded: the :class:`~zoexport.models.LoadedModel`.
    """
    modules = adapted_modules(slots)
    if not modules:
        return
    scaling: LoraScaling = config.scaling
    ranks = {module: scaling.rank_of(module) for module in modules}
    alphas = {module: scaling.alpha_of(module) for module in modules}
    write_config(
        folder,
        AdapterSettings(
            rank=scaling.rank,
            alpha=scaling.alpha,
            base_model=loaded.base,
            target_modules=tuple(target_modules(loaded.model, modules)),
            fan_in_fan_out=loaded.fan_in_fan_out,
            causal=not loaded.masked,
            rslora=scaling.rslora,
            rank_pattern=patterns_of(ranks, scaling.rank),
            alpha_pattern=patterns_of(alphas, scaling.alpha),
            dropout=config.lora_dropout,
        ),
    )


def target_modules(model: Any, modules: Sequence[str]) -> list[str]:
    """Return ``target_modules`` for PEFT that match exactly ``modules``.

    Short names (``q_proj``) if they match no other layer of the model, else whole paths, for
    example if only the last layers are adapted.
    """
    names = sorted({module.rpartition(".")[2] for module in modules})
    matched = {path for path, _ in model.named_modules() if path.rpartition(".")[2] in names}
    return names if matched == set(modules) else list(modules)


def read_settings(folder: Path, known: Mapping[str, Any] | None = None) -> AdapterSettings:
    """Read the settings of a bundle's or an adapter's ``adapter_config.json``.

    Args:
        folder: folder of the file. known: members that override those of the file.

    Raises:
        StateError: the file is missing or is not a LoRA description.
    """
    content = {**read_config(folder, "PEFT", WEIGHTS), **(known or {})}
    try:
        rank, targets = int(content["r"]), content["target_modules"]
        ranks = _patterns(content, "rank_pattern", int)
        if min([rank, *ranks.values()]) < 1:
            raise ValueError(f"a rank of {min([rank, *ranks.values()])}")
        if not isinstance(targets, list) or not all(isinstance(name, str) for name in targets):
            raise TypeError("target_modules that are no list of names")
        return AdapterSettings(
            rank=rank,
            alpha=float(content["lora_alpha"]),
            base_model=str(content.get("base_model_name_or_path") or ""),
            target_modules=tuple(targets),
            fan_in_fan_out=bool(content.get("fan_in_fan_out", False)),
            causal=content.get("task_type", _CAUSAL) == _CAUSAL,
            rslora=bool(content.get("use_rslora", False)),
            rank_pattern=ranks,
            alpha_pattern=_patterns(content, "alpha_pattern", float),
            dropout=float(content.get("lora_dropout") or 0.0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{folder / CONFIG}",
            found=f"no usable LoRA description ({type(error).__name__}: {first_line(error)})",
            expected="r, lora_alpha and target_modules",
            fix="Use the file that zoexport or PEFT wrote.",
        ) from error


def _patterns(content: Mapping[str, Any], key: str, kind: Callable[[Any], _N]) -> dict[str, _N]:
    """Return numbers by pattern. Patterns are plain names (``patterns_of``), so matching is fast.

    Raises:
        TypeError, ValueError: the member is something else.
    """
    given = content.get(key) or {}
    if not isinstance(given, dict):
        raise TypeError(f"{key} that is no object")
    for pattern in given:
        name = pattern.removeprefix("^")
        if re.escape(re.sub(r"\\(.)", r"\1", name)) != name:
            raise ValueError(f"{key} with {pattern!r}, which is more than a name")
    return {pattern: kind(value) for pattern, value in given.items()}
