"""Tests that need Qualcomm's libraries."""

from __future__ import annotations

import pytest

from zoexport.core import qnn
from zoexport.core.errors import Problem

_found = qnn.find()
needs_qnn = pytest.mark.skipif(
    isinstance(_found, Problem), reason=_found.reason if isinstance(_found, Problem) else ""
)
"""Where there are none; CI counts such a skip as a failure."""
