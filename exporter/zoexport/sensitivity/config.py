"""The settings of a mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from zoexport.core.config import parse, setting
from zoexport.core.errors import ConfigError

KINDS = ("sensitive", "random", "largest", "smallest", "grasp")
READ_TEXT = ("sensitive", "grasp")
"""The kinds that gradients choose; the others need no text."""


@dataclasses.dataclass(frozen=True)
class MaskConfig:
    """How many weights are chosen, by what, and on how much text."""

    density: float = setting(0.001, help="chosen share of the linear weights, at most 1", above=0)
    scope: str = setting(
        "model",
        help="the best of all linear weights together, or that share of each",
        choices=("model", "layer"),
    )
    kind: str = setting("sensitive", help="what chooses (docs/masks.md)", choices=KINDS)
    sequences: int = setting(64, help="of the text, drawn with the seed", at_least=1)
    seq_len: int = setting(256, help="tokens of the longest sequence", at_least=2)
    seed: int = setting(0, help="of the sequences that are drawn, and of kind=random", at_least=0)

    @property
    def reads_text(self) -> bool:
        """Whether gradients choose."""
        return self.kind in READ_TEXT


def parse_config(values: Mapping[str, Any]) -> MaskConfig:
    """The settings of ``--set``.

    Raises:
        ConfigError: unknown settings and impossible values; also a density above 1.
    """
    config = parse(MaskConfig, values)
    if config.density > 1:
        raise ConfigError(
            "setting 'density'",
            found=f"{config.density:g}",
            expected="a share above 0 and at most 1",
            fix="Write 0.001 for one weight in a thousand.",
        )
    return config
