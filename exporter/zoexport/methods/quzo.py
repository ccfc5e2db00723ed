"""QuZO: zeroth-order training of quantized weights, which stay integers (docs/methods.md)."""

from __future__ import annotations

import dataclasses

from zoexport.core.config import setting
from zoexport.core.errors import Problem
from zoexport.core.settings import LoraSettings
from zoexport.core.target import Method, Pass
from zoexport.methods import methods
from zoexport.methods.steps import spsa

ESTIMATORS = ("q-rge2", "q-rge1")
_MOST_EPS = {2: 0.5, 4: 3.5, 8: 64.0}
"""Largest eps by perturbation bits: half of the largest level.

Beyond it, over 5 % of a perturbation is clipped.
"""

_WEIGHTS = {"full": "int8", "lora": "int4"}
"""Default weights by ``train``: trained integers learn in INT8 and hardly in INT4.

Frozen ones can be INT4.
"""

_EPS = {"int4": 0.5, "int8": 1.0, "adapters": 1.0}
_LR = {"int4": 3e-3, "int8": 1.0, "adapters": 1000.0}
"""Defaults by trained integers, measured with SmolLM2-135M (docs/results/learning.md)."""


@dataclasses.dataclass(frozen=True)
class QuzoConfig(LoraSettings):
    """Settings of ``quzo`` for ``--set`` and recipes."""

    train: str = setting(
        "full",
        choices=("full", "lora"),
        help="what is trained: all linear weights (full), or quantized adapters (lora)",
    )
    weights: str = setting(
        "",
        choices=("int8", "int4"),
        help="dtype of the model's weights (default with train=full: int8, with train=lora: int4)",
    )
    activation_bits: int = setting(
        32,
        choices=("32", "8"),
        help="dtype of the inputs of linear layers: fp32, or int8 with calibrated scales",
    )
    perturbation_bits: int = setting(
        4, choices=("2", "4", "8"), help="bits of a perturbation (3, 15 or 255 levels)"
    )
    estimator: str = setting(
        "q-rge2",
        choices=ESTIMATORS,
        help="stochastic roundings per direction: two (unbiased) or one (biased)",
    )
    update: str = setting(
        "each",
        choices=("each", "summed"),
        help="round the update of each direction, or their sum once",
    )
    outliers: float = setting(
        0.0, at_least=0, help="share of activations in a float format; 0: none"
    )
    datatypes: str = setting(
        "int",
        choices=("int", "search"),
        help="format of 8-bit activations: integers, or the format with the lower error",
    )
    num_queries: int = setting(4, at_least=1, help="random directions per step (q)")
    eps: float = setting(
        None,
        above=0,
        help="perturbation scale in quantization steps (int4: 0.5, int8 and adapters: 1)",
    )
    learning_rate: float = setting(
        None,
        above=0,
        phase="run",
        help="learning rate in quantization steps (int4: 3e-3, int8: 1, adapters: 1000)",
    )

    def __post_init__(self) -> None:
        weights = self.weights or _WEIGHTS[self.train]
        trained = weights if self.train == "full" else "adapters"
        eps = min(_EPS[trained], _MOST_EPS[self.perturbation_bits])
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "eps", eps if self.eps is None else self.eps)
        object.__setattr__(
            self,
            "learning_rate",
            _LR[trained] if self.learning_rate is None else self.learning_rate,
        )

    @property
    def update_rule(self) -> str:
        """Name of estimator and update in the manifest (``grid.estimator``)."""
        return self.estimator if self.update == "each" else f"{self.estimator}-summed"

    @property
    def trained(self) -> str:
        """Kind of training: integers of the linear weights or of adapters."""
        return "codes" if self.train == "full" else "adapter codes"

    @property
    def rounds_inputs(self) -> bool:
        """True if activations are int8."""
        return self.activation_bits == 8

    @property
    def rounding(self) -> str:
        """Rounding in the bundle: integer weights (shared with the reference), int8 activations."""
        return "integers, int8" if self.rounds_inputs else "integers"

    @property
    def perturbs_weights(self) -> bool:
        """True unless adapters are trained."""
        return self.train == "full"

    @property
    def modules(self) -> tuple[str, str]:
        """Trained layers: every linear layer, or the layers with adapters."""
        return (
            ("all-linear", self.lora_layers_to_transform)
            if self.train == "full"
            else super().modules
        )

    def problems(self) -> list[Problem]:
        """Also report invalid combinations of settings."""
        found = super().problems()
        most = _MOST_EPS[self.perturbation_bits]
        if not self.eps <= most:
            found.append(
                Problem(
                    f"setting eps={self.eps:g}",
                    f"more than a twentieth of the directions would be cut off at the largest of "
                    f"{2**self.perturbation_bits - 1} levels",
                    f"Choose at most {most:g} with perturbation_bits={self.perturbation_bits}, or more bits.",
                )
            )
        if self.activation_bits == 32 and (self.outliers or self.datatypes != "int"):
            found.append(
                Problem(
                    "setting outliers" if self.outliers else "setting datatypes",
                    "activations stay fp32 with activation_bits=32, so no format is chosen for them",
                    "Add activation_bits=8.",
                )
            )
        if not self.outliers < 0.5:
            found.append(
                Problem(
                    f"setting outliers={self.outliers:g}",
                    "outliers are few by definition",
                    "Choose a share below 0.5, such as 0.01.",
                )
            )
        if self.activations not in (None, "fp32"):
            found.append(
                Problem(
                    f"setting activations={self.activations}",
                    "its grid would be another one for every row; QuZO's are calibrated when the bundle is compiled",
                    "Use activation_bits=8 instead.",
                )
            )
        return found


def passes(config: QuzoConfig, targets: list[str]) -> list[Pass]:
    """Return the passes that run all 2q perturbed copies in one call.

    ``targets``: modules to train.
    """
    from zoexport.methods.split import split_passes

    order = split_passes(config, targets, copies=2 * config.num_queries)
    return [*order, spsa(config.num_queries, "call")]


methods.register(
    "quzo",
    Method(
        name="quzo",
        summary="zeroth-order training of the int8 or int4 weights, which stay integers (QuZO)",
        config=QuzoConfig,
        passes=passes,
        reference_class="zoexport.methods.reference.quzo:QuzoReference",
    ),
)
