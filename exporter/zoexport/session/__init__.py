"""Python's host of the C++ session; imports neither torch nor numpy, so that training need not hold them."""

from __future__ import annotations

from zoexport.session.dataset import Dataset
from zoexport.session.host import Session
from zoexport.session.library import abi_version, memory_usage, normals, signs, vulkan_devices
from zoexport.session.support import describe_state
from zoexport.session.types import (
    Candidate,
    Engine,
    Evaluation,
    Generation,
    Info,
    Loss,
    Memory,
    OnPart,
    OnProgress,
    OnText,
    OnToken,
    Record,
    Run,
    Sampling,
    Schedule,
    SlotInfo,
    Step,
    StepEvaluation,
    StepProgress,
    Tensor,
    Validation,
    no_programs,
)

__all__ = [
    "Candidate",
    "Dataset",
    "Engine",
    "Evaluation",
    "Generation",
    "Info",
    "Loss",
    "Memory",
    "OnPart",
    "OnProgress",
    "OnText",
    "OnToken",
    "Record",
    "Run",
    "Sampling",
    "Schedule",
    "Session",
    "SlotInfo",
    "Step",
    "StepEvaluation",
    "StepProgress",
    "Tensor",
    "Validation",
    "abi_version",
    "describe_state",
    "memory_usage",
    "no_programs",
    "normals",
    "signs",
    "vulkan_devices",
]
