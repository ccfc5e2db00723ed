"""Compile a language model into a bundle that fine-tunes itself on a phone, and bring the adapter back.

    import zoexport
    bundle = zoexport.compile("smollm2-135m", target="android-cpu", max_length=64)

Importing the package loads no compiler: each verb imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoexport.core.version import __version__

if TYPE_CHECKING:
    from zoexport.api import Bundle, compile, federate
    from zoexport.api.finetuning import Run, finetune
    from zoexport.api.verbs import check, pack, plan, report, sign
    from zoexport.core.errors import ZoExportError
    from zoexport.data.sources import DataSource
    from zoexport.run.results import (
        Checked,
        Evaluated,
        Exported,
        Generated,
        Imported,
        Packed,
        Parity,
        Planned,
        Reported,
        Signed,
        Simulated,
        Trained,
    )
    from zoexport.session import Sampling, Session

__all__ = [
    "Bundle",
    "Checked",
    "DataSource",
    "Evaluated",
    "Exported",
    "Generated",
    "Imported",
    "Packed",
    "Parity",
    "Planned",
    "Reported",
    "Run",
    "Sampling",
    "Session",
    "Signed",
    "Simulated",
    "Trained",
    "ZoExportError",
    "__version__",
    "check",
    "compile",
    "federate",
    "finetune",
    "pack",
    "plan",
    "report",
    "sign",
]

_PLACES = {
    "Bundle": "zoexport.api",
    "compile": "zoexport.api",
    "finetune": "zoexport.api.finetuning",
    "Run": "zoexport.api.finetuning",
    "DataSource": "zoexport.data.sources",
    "ZoExportError": "zoexport.core.errors",
    **dict.fromkeys(("Sampling", "Session"), "zoexport.session"),
    **dict.fromkeys(
        ("Evaluated", "Exported", "Generated", "Imported", "Parity", "Trained"),
        "zoexport.run.results",
    ),
    **dict.fromkeys(
        ("Checked", "Packed", "Planned", "Reported", "Signed", "Simulated"), "zoexport.run.results"
    ),
    **dict.fromkeys(("check", "pack", "plan", "report", "sign"), "zoexport.api.verbs"),
}


def __getattr__(name: str) -> Any:
    """Import an exported name on first use."""
    from importlib import import_module

    if name == "federate":
        return import_module("zoexport.api.federate")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__
