"""Plan of a step's gradient estimate: the member ``step`` of the manifest (docs/formats.md).

The stages are divided into groups, one level each. A level perturbs the parameters of its group
along new directions; a probe is one side of a direction, or no perturbation. Levels are nested: for
every probe of a level, the next level runs all of its own. The session executes the plan without
depending on the method (runtime_ops/session/manifest/step_plan.h).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

Copies = Literal["one", "stage", "call"]
"""How many perturbed copies are computed at once: one; all, stage by stage; all in a call of programs that perturb."""
Noise = Literal["normal", "rademacher"]
"""What directions are made of (docs/noise.md)."""
Divisor = Literal["distance", "deviation"]
"""What a difference of two losses is divided by: how far apart their probes are, or the losses' standard deviation."""


Rule = Literal["momentum", "adam", "muon"]
"""What an update moves values by, where that is more than the gradient of its step."""


@dataclasses.dataclass(frozen=True)
class UpdateRule:
    """Moments of the last steps' gradients, made again from the log in each update (docs/methods.md).

    Attributes:
        rule: ``momentum``, by the first moment; ``adam``, by that over the root of the second; ``muon``, by the first
            one's orthogonal factor.
        horizon: steps whose gradients count.
        beta1: by how much a gradient counts less in the first moment for each step that it is old.
        beta2: of the second one, of ``adam`` alone.
    """

    rule: Rule
    horizon: int
    beta1: float
    beta2: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the rule's entry in the manifest."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class ProbeLevel:
    """One group's directions.

    Attributes:
        begin: the number of the group's first stage; it ends where the next one's begins.
        directions: for each probe of the level outside it.
        difference: ``central``, to the other side of a direction, or ``forward``, to one probe without a move.
    """

    begin: int
    directions: int
    difference: str = "central"

    @property
    def probes(self) -> int:
        """For each probe of the level outside it."""
        return self.directions + 1 if self.difference == "forward" else 2 * self.directions


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """Levels (outermost first), parallel perturbations, and composition of the gradients.

    ``update`` is None if an update uses the gradient of one step only.
    """

    levels: tuple[ProbeLevel, ...]
    copies: Copies = "one"
    noise: Noise = "normal"
    divisor: Divisor = "distance"
    update: UpdateRule | None = None

    def runs(self, stage: int) -> int:
        """Return the number of runs of a stage in one call of a step (FedSPZO, equation 9)."""
        return math.prod(level.probes for level in self.levels if level.begin <= stage)

    @property
    def losses(self) -> int:
        """Number of losses that a step evaluates."""
        return math.prod(level.probes for level in self.levels)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan's entry in the manifest."""
        return {
            "levels": [dataclasses.asdict(level) for level in self.levels],
            "copies": self.copies,
            "noise": self.noise,
            "divisor": self.divisor,
            **({} if self.update is None else {"update": self.update.as_dict()}),
        }


def differences_of(manifest: Mapping[str, Any]) -> str:
    """``central`` or ``forward``: the differences of a bundle's first level, unless a run chooses others."""
    step = manifest.get("step")
    level: Mapping[str, Any] = step["levels"][0] if step else manifest["settings"]
    return str(level.get("difference", "central"))
