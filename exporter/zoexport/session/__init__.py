"""Python binding of the C++ session. Imports neither torch nor numpy, to save memory."""

from __future__ import annotations

from zoexport.session.bundle import Bundle
from zoexport.session.data import Dataset, Tokenizer, Validation
from zoexport.session.host import (
    Session,
    abi_version,
    describe_state,
    memory_usage,
    normals,
    signs,
    vulkan_devices,
)
from zoexport.session.types import (
    Candidate,
    Engine,
    Evaluation,
    Generation,
    Info,
    Memory,
    OnPart,
    OnProgress,
    OnText,
    OnToken,
    Record,
    Sampling,
    Score,
    SlotInfo,
    Step,
    StepEvaluation,
    StepProgress,
    Tensor,
    no_programs,
)

__all__ = [
    "Bundle",
    "Candidate",
    "Dataset",
    "Engine",
    "Evaluation",
    "Generation",
    "Info",
    "Memory",
    "OnPart",
    "OnProgress",
    "OnText",
    "OnToken",
    "Record",
    "Sampling",
    "Score",
    "Session",
    "SlotInfo",
    "Step",
    "StepEvaluation",
    "StepProgress",
    "Tensor",
    "Tokenizer",
    "Validation",
    "abi_version",
    "describe_state",
    "memory_usage",
    "no_programs",
    "normals",
    "signs",
    "vulkan_devices",
]
