"""Settings of SensZOQ."""

from __future__ import annotations

import dataclasses

from zoexport.core.config import setting
from zoexport.core.settings import TrainingSettings
from zoexport.core.types import Problem


@dataclasses.dataclass(frozen=True)
class SenszoqConfig(TrainingSettings):
    """What ``--set`` and recipes take for ``senszoq``, with the defaults."""

    mask: str | None = setting(
        None, help="the file that says which weights are trained (zoexport sensitivity)"
    )
    master: str = setting(
        "fp16", choices=("fp16", "bf16"), help="how the trained weights are kept; bf16 is refused"
    )
    queries: int = setting(4, at_least=1, help="random directions a step (q)")
    eps: float = setting(1e-2, above=0, runtime=True, help="perturbation scale")
    optimizer: str = setting("sgd", choices=("sgd",), help="the update rule")
    lr: float = setting(2e-4, above=0, runtime=True, help="learning rate")

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

    def problems(self) -> list[Problem]:
        """bf16 masters, with which the paper's losses did not fall (appendix G)."""
        if self.master == "fp16":
            return []
        return [
            Problem(
                f"setting master={self.master}",
                "bfloat16 has 7 bits of mantissa, so most updates of zeroth-order training round to nothing "
                "(SensZOQ, appendix G: the loss does not fall)",
                "Leave master at fp16.",
            )
        ]
