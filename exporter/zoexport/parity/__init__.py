"""parity: a bundle in the session against its method's reference in PyTorch."""

from __future__ import annotations

from zoexport.parity.compare import parity, state_error
from zoexport.parity.signs import compare_signs

__all__ = ["compare_signs", "parity", "state_error"]
