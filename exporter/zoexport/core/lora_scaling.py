"""Inner sizes of adapters and what their outputs are scaled by, module by module, by PEFT's rules."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from zoexport.core.errors import ConfigError, nearest

_N = TypeVar("_N", int, float)


@dataclasses.dataclass(frozen=True)
class LoraScaling:
    """Ranks and scales of all adapters.

    A key of a pattern is a regular expression for a module's whole path, or for its end from a dot on; of several that
    match, the first counts (``peft.utils.get_pattern_key``).

    Attributes:
        rank, alpha: of modules that no pattern names.
        rslora: scaled by alpha / sqrt(rank) (rsLoRA, Kalajdzievski 2023, Theorem 3.2) and not by alpha / rank.
        rank_pattern, alpha_pattern: of modules by pattern.
    """

    rank: int
    alpha: float
    rslora: bool = False
    rank_pattern: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's adapter."""
        return first_match(self.rank_pattern, module, self.rank)

    def alpha_of(self, module: str) -> float:
        """Return the alpha of a module's adapter."""
        return first_match(self.alpha_pattern, module, self.alpha)

    def scale_of(self, module: str) -> float:
        """Return the scale factor of a module's adapter output."""
        rank = self.rank_of(module)
        return self.alpha_of(module) / (math.sqrt(rank) if self.rslora else rank)

    def plain_alpha_of(self, module: str) -> float:
        """The alpha that gives a module's scale as alpha / rank, as tools without rsLoRA have it."""
        alpha = self.alpha_of(module)
        return alpha * math.sqrt(self.rank_of(module)) if self.rslora else alpha

    def check(self, modules: Iterable[str]) -> None:
        """Refuse a pattern that is none, or that names no adapted module.

        Args:
            modules: the adapted ones, by path.

        Raises:
            ConfigError: there is one.
        """
        paths = list(modules)
        leaves = sorted({path.rpartition(".")[2] for path in paths})
        for key, patterns in (
            ("lora.rank_pattern", self.rank_pattern),
            ("lora.alpha_pattern", self.alpha_pattern),
        ):
            for pattern in patterns:
                try:
                    known = any(_matches(pattern, path) for path in paths)
                except re.error as error:
                    raise ConfigError(
                        f"setting {key!r}",
                        found=f"{pattern!r}, which is no regular expression ({error})",
                        expected="a module's path or its end, or a regular expression of such",
                        fix="Correct it.",
                    ) from error
                if not known:
                    raise ConfigError(
                        f"setting {key!r}",
                        found=f"{pattern!r}, which names no adapted module",
                        expected="names such as " + ", ".join(leaves),
                        fix=f"Correct it, or adapt the module (lora.target_modules).{nearest(pattern, leaves)}",
                    )


def first_match(patterns: Mapping[str, _N], module: str, default: _N) -> _N:
    """Return the value of the first pattern that matches the module, or ``default``."""
    return next((v for pattern, v in patterns.items() if _matches(pattern, module)), default)


def patterns_of(values: Mapping[str, _N], default: _N) -> dict[str, _N]:
    """Return patterns that give each module its value; no two patterns match the same module.

    Their order, which is lost in files with sorted keys such as PEFT's, therefore has no effect.

    Args:
        values: values of all adapted modules. default: value that needs no pattern.
    """
    found: dict[str, _N] = {}
    for module, value in values.items():
        leaf = module.rpartition(".")[2]
        others = {known for path, known in values.items() if path.rpartition(".")[2] == leaf}
        if value != default:
            found[re.escape(leaf) if len(others) == 1 else f"^{re.escape(module)}"] = value
    return found


def _matches(pattern: str, module: str) -> bool:
    return re.match(rf"(.*\.)?({pattern})$", module) is not None
