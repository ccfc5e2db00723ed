"""What tests of engines beside ExecuTorch share: rows of unequal lengths, and parity that says who ran the programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoexport.session import Dataset
from zoexport.tools.parity import parity

EXAMPLES = [
    [(7 * number + 3 * place) % 300 for place in range(length + 1)]
    for number, length in enumerate((5, 24, 11))
]


def compare(bundle: Path, engine: str, steps: int) -> dict[str, Any]:
    """Parity without progress; it passes, with the losses of fp32, in a session with ``engine``."""
    report = parity(bundle, steps=steps, progress=lambda *_: None)
    assert report["passed"] is True, report
    assert report["max_relative_loss_error"] <= 1e-4
    assert report["runner"] == f"session ({engine})"
    return report


def data() -> Dataset:
    made = Dataset()
    for tokens in EXAMPLES:
        made.add([(tokens[:-1], tokens[1:])], 0)
    return made
