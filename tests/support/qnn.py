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


def variables() -> dict[str, str]:
    """The environment in which a program that is not Python has QNN's libraries, as a phone's linker finds its own."""
    library = qnn.find()
    assert not isinstance(library, Problem)
    paths = [*qnn.CXX_LIBRARIES, *library.libraries()]
    return {"LD_PRELOAD": ":".join(map(str, paths)), qnn.REAL_LIBRARY: str(library.real)}
