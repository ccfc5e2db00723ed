"""parity: a bundle in the session against its method's reference in PyTorch."""

from __future__ import annotations

from zoexport.parity.compare import parity, state_error

__all__ = ["parity", "state_error"]
