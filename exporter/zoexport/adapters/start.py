"""Settings and matrices of a PEFT adapter that a bundle starts from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.adapters.files import read_config
from zoexport.adapters.formats import slot_modules
from zoexport.adapters.peft import WEIGHTS, PeftFormat, as_safetensors, read_settings
from zoexport.core import tensor_file
from zoexport.core.config import as_dict, parse
from zoexport.core.errors import ConfigError, StateError, first_line

if TYPE_CHECKING:
    import torch

_TARGETS = "lora.target_modules"
_MODULE = re.compile(r"base_model\.model\.(.+)\.lora_A\.weight")


def start_settings(adapter: Path) -> dict[str, Any]:
    """Return the settings of a bundle with an adapter's layers, ranks and alphas.

    The layers are the names in the adapter's description, or the paths in its weights file if the
    description does not list all of them.

    Args:
        adapter: folder of the PEFT adapter.

    Raises:
        StateError: the folder is not a PEFT adapter, or is damaged.
    """
    content = read_config(adapter, "PEFT", WEIGHTS)
    targets = content.get("target_modules")
    chosen = [content.get(key) for key in ("layers_to_transform", "exclude_modules")]
    if not isinstance(targets, list) or any(chosen) or 0 in chosen:
        with as_safetensors(adapter) as folder:
            content = {**content, "target_modules": _modules(folder / WEIGHTS)}
    found = read_settings(adapter, content)
    return {
        "lora.r": found.rank,
        "lora.alpha": found.alpha,
        "lora.use_rslora": found.rslora,
        "lora.rank_pattern": dict(found.rank_pattern),
        "lora.alpha_pattern": dict(found.alpha_pattern),
        _TARGETS: ",".join(sorted(found.target_modules)),
        "lora.layers_to_transform": "all",
    }


def check_start(
    adapter: Path, own: Mapping[str, Any], given: Mapping[str, Any], config: type[Any]
) -> None:
    """Refuse settings that contradict an adapter.

    Args:
        adapter: for the message. own: from :func:`start_settings`. given: the user's settings.
        config: settings class of the method, which parses them.

    Raises:
        ConfigError: some contradict it (the message lists them), or a value is invalid.
    """
    asked = as_dict(parse(config, {key: given[key] for key in own if key in given}))
    other = [key for key in own if key in given and not _same(key, own[key], asked[key])]
    if other:
        raise ConfigError(
            "settings " + ", ".join(f"{key}={given[key]}" for key in other),
            found=f"an adapter to start from, {adapter}, with "
            + ", ".join(f"{key}={own[key]}" for key in other),
            expected="the adapter's",
            fix="Leave them out: they are taken from the adapter.",
        )


def start_values(adapter: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Read the matrices of the adapter.

    Args:
        adapter: folder of the PEFT adapter.
        shapes: of all tensors, ``lora_A.<module>`` (in, rank) and ``lora_B.<module>`` (rank, out).

    Returns:
        The values of each state tensor, float32.

    Raises:
        StateError: other layers or shapes, damaged, or more than two matrices per layer.
    """
    import torch

    modules = slot_modules(shapes)
    settings = read_settings(adapter, {"target_modules": modules})
    read = PeftFormat().read(adapter, shapes, settings)
    return {name: torch.from_numpy(values) for name, values in read.items()}


def _same(key: str, own: Any, given: Any) -> bool:
    return bool(_names(own) == _names(given) if key == _TARGETS else own == given)


def _names(targets: str) -> set[str]:
    return {name.strip() for name in targets.split(",")}


def _modules(file: Path) -> list[str]:
    """Return the paths of the adapted layers from the names in a weights file."""
    import safetensors

    try:
        tensor_file.check(file)
        with safetensors.safe_open(str(file), framework="numpy") as opened:
            names: Iterable[str] = opened.keys()
            found = [match[1] for name in names if (match := _MODULE.fullmatch(name))]
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise StateError(
            f"{file}",
            found=f"a file that cannot be read ({first_line(error)})",
            expected="the weights of an adapter of PEFT",
            fix="Save the adapter again, with safetensors.",
        ) from error
    return sorted(found)
