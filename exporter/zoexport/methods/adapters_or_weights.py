"""Settings of zeroth-order methods that train adapters or all weights of the model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from zoexport.core.config import setting
from zoexport.core.errors import Problem
from zoexport.core.settings import LoraSettings


@dataclasses.dataclass(frozen=True)
class AdaptersOrWeights(LoraSettings):
    """Settings of zeroth-order methods that can also train the weights of the model."""

    train: str = setting(
        "lora",
        choices=("lora", "full"),
        help="what is trained: adapters (lora) or all weights (full)",
    )
    weights: str = setting(
        "",
        choices=("fp32", "int8", "int4"),
        help="dtype of the weights (int4); with train=full they are trained in fp32",
    )

    eps: float = setting(
        None, above=0, phase="run", help="perturbation scale (lora: 1e-2, full: 1e-3)"
    )
    learning_rate: float = setting(
        None,
        above=0,
        phase="run",
        help="learning rate (mezo: 2e-3, full: 2e-5; spzo: 1e-3, full: 1e-5)",
    )

    rates: ClassVar[dict[str, float]]
    """Default learning rates for each value of ``train``."""

    def __post_init__(self) -> None:
        full = self.train == "full"
        defaults = {
            "weights": "fp32" if full else "int4",
            "eps": 1e-3 if full else 1e-2,
            "learning_rate": self.rates[self.train],
        }
        for name, default in defaults.items():
            object.__setattr__(self, name, getattr(self, name) or default)

    @property
    def trained(self) -> str:
        """Kind of training: adapters or all weights."""
        return "weights" if self.train == "full" else "lora"

    @property
    def modules(self) -> tuple[str, str]:
        """Trained layers."""
        return ("all-linear", "all") if self.train == "full" else super().modules

    def problems(self) -> list[Problem]:
        """Also report weights that cannot be trained."""
        found = super().problems()
        if self.train == "full" and self.weights != "fp32":
            where = f"settings train=full, weights={self.weights}"
            reason = "weights are moved along normal directions, which integers cannot follow"
            fix = "Leave weights out, train adapters (train=lora), or train the integers with method quzo."
            found.append(Problem(where, reason, fix))
        return found
