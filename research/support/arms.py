"""What a comparison of methods compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method with settings of ``compile --set``, and the learning rates that it is tried with."""

    label: str
    method: str
    settings: Mapping[str, str]
    rates: tuple[float, ...]
