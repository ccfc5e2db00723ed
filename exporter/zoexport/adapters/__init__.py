"""Adapter formats of other tools: export from and import into a training state.

A format is a module of this package with an :class:`AdapterFormat`; :data:`FORMATS` names them.
"""

from __future__ import annotations

from pathlib import Path

from zoexport.adapters.formats import (
    AdapterFormat,
    AdapterSettings,
    Slots,
    slot_modules,
)
from zoexport.adapters.llama_cpp import GgufFormat, llama_cpp_entry
from zoexport.adapters.mlx import WEIGHTS as MLX_WEIGHTS
from zoexport.adapters.mlx import MlxFormat
from zoexport.adapters.peft import (
    PICKLED,
    WEIGHTS,
    PeftFormat,
    read_settings,
    target_modules,
    write_config,
    write_peft_config,
)
from zoexport.core.errors import ConfigError, nearest

FORMATS: dict[str, AdapterFormat] = {
    entry.name: entry for entry in (PeftFormat(), MlxFormat(), GgufFormat())
}
"""The formats by the name that ``--format`` takes."""

__all__ = [
    "FORMATS",
    "AdapterFormat",
    "AdapterSettings",
    "Slots",
    "adapter_format",
    "format_of",
    "llama_cpp_entry",
    "read_settings",
    "slot_modules",
    "target_modules",
    "write_config",
    "write_peft_config",
]


def format_of(path: Path) -> str | None:
    """Return the name of the format of an adapter's files; None if unknown."""
    if path.is_file():
        return "gguf"
    for name, files in (("peft", (WEIGHTS, PICKLED)), ("mlx", (MLX_WEIGHTS,))):
        if any((path / file).is_file() for file in files):
            return name
    return None


def adapter_format(name: str, outtype: str | None = None) -> AdapterFormat:
    """Return the format called ``name``.

    Args:
        outtype: data type, for a format that has several; None: its first.

    Raises:
        ConfigError: unknown name (the message lists the known ones), or unknown type.
    """
    if name not in FORMATS:
        raise ConfigError(
            f"adapter format {name!r}",
            found="no such format",
            expected="one of " + ", ".join(sorted(FORMATS)),
            fix=f"Choose one of them.{nearest(name, FORMATS)}",
        )
    found = FORMATS[name]
    if outtype is None:
        return found
    if isinstance(found, GgufFormat):
        return found.with_outtype(outtype)
    raise ConfigError(
        f"outtype {outtype!r}",
        found=f"the format {name!r}",
        expected="gguf, whose numbers have several types",
        fix="Leave --outtype out.",
    )
