"""Settings of SensZOQ."""

from __future__ import annotations

import dataclasses

from zoexport.core.config import setting
from zoexport.core.settings import TrainingSettings


@dataclasses.dataclass(frozen=True)
class SenszoqConfig(TrainingSettings):
    """What ``--set`` and recipes take for ``senszoq``, with the defaults."""

    mask: str | None = setting(
        None, help="the file that says which weights are trained (zoexport sensitivity)"
    )
    queries: int = setting(4, at_least=1, help="random directions a step (q)")
    eps: float = setting(1e-3, above=0, phase="run", help="perturbation scale")
    lr: float = setting(1e-4, above=0, phase="run", help="learning rate")

    @property
    def trained(self) -> str:
        """Chosen elements of the weights."""
        return "sparse"

    @property
    def perturbs_weights(self) -> bool:
        """Those that are chosen."""
        return True

    @property
    def density(self) -> float:
        """The paper's share of trained weights, by which sizes are estimated where there is no mask."""
        return 1e-3
