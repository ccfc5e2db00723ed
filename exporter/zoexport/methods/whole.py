"""Zeroth-order LoRA-FA: settings of model and layer granularity, passes of the former.

With granularity=model the programs apply updates themselves, from the gradients of one step. With
granularity=layer the session applies them and can also use the gradients of earlier steps
(docs/methods.md).

Passes are imported inside functions: training reads a method's settings without torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, cast

from zoexport.core.config import setting
from zoexport.core.errors import Problem
from zoexport.core.settings import LoraSettings
from zoexport.core.step_plan import Rule, UpdateRule
from zoexport.core.target import Pass
from zoexport.trained import kind_of

if TYPE_CHECKING:
    from zoexport.core.graph import TrainingGraph


@dataclasses.dataclass(frozen=True)
class WholeOrLayers(LoraSettings):
    """Settings of methods that support model and layer granularity."""

    rounds_layers: ClassVar[bool] = True

    num_queries: int = setting(4, at_least=1, help="random directions per step (q)")
    eps: float = setting(1e-2, above=0, phase="run", help="perturbation scale")
    labels: int | None = setting(
        None,
        at_least=1,
        help="maximum label tokens per call; larger batches take several (all; android-npu, ios-*: 8 per row)",
    )
    granularity: str | None = setting(
        None,
        choices=("model", "layer"),
        help="one program, or one per distinct layer over mapped weights (default: layer on host, android-cpu "
        "and android-gpu, else model)",
    )
    optimizer: str = setting(
        "sgd",
        choices=("sgd", "momentum", "adam", "muon"),
        help="optimizer; all except sgd need granularity=layer",
    )
    beta1: float = setting(
        0.9,
        at_least=0,
        below=1,
        help="beta1 of optimizer=momentum, adam and muon",
    )
    beta2: float = setting(
        0.99,
        at_least=0,
        below=1,
        help="beta2 of optimizer=adam",
    )
    horizon: int = setting(
        10,
        at_least=1,
        below=1001,
        help="number of past steps that an update of momentum, adam and muon uses",
    )

    @property
    def staged(self) -> bool:
        """True with layer granularity."""
        return self.granularity != "model"

    @property
    def update(self) -> UpdateRule | None:
        """Update rule; None if an update uses only the gradients of its own step (sgd)."""
        if self.optimizer == "sgd":
            return None
        beta2 = self.beta2 if self.optimizer == "adam" else None
        return UpdateRule(cast(Rule, self.optimizer), self.horizon, self.beta1, beta2)

    def problems(self) -> list[Problem]:
        """Also report moments with model granularity, and muon without adapters."""
        found = super().problems()
        where = f"setting optimizer={self.optimizer}"
        if self.optimizer == "muon" and self.trained != "lora":
            reason = "the factor of a whole weight takes longer than a step; it is made of adapters"
            found.append(Problem(where, reason, "Leave train at lora, or choose optimizer=adam."))
        if self.update is None or self.staged:
            return found
        reason = f"a program of granularity={self.granularity} applies one step's gradients, and keeps no others"
        return [*found, Problem(where, reason, "Add granularity=layer, or leave optimizer out.")]


def whole_passes(
    config: WholeOrLayers,
    targets: list[str],
    copy_adapters: Callable[[TrainingGraph, int], TrainingGraph],
) -> list[Pass]:
    """Return the rewrites, in order.

    Args:
        config: the method's settings, with ``num_queries``.
        targets: target modules of the adapters.
        copy_adapters: function of ``passes.dual_forward`` that perturbs the adapters.
    """
    from zoexport.passes.bind_rows import bind_rows
    from zoexport.passes.check_lengths import check_lengths
    from zoexport.passes.choose_rows_early import choose_rows_early
    from zoexport.passes.cleanup import cleanup
    from zoexport.passes.find_linears import find_linears
    from zoexport.passes.fold_constants import fold_constants
    from zoexport.passes.group_queries import group_queries
    from zoexport.passes.label_logprobs import label_logprobs
    from zoexport.passes.quantize_weights import quantize_weights

    most = config.batch_size * config.max_length
    labels = min(config.labels or most, most)
    order = [
        Pass("cleanup", cleanup, "the later passes match patterns without no-ops"),
        Pass("find_linears", find_linears, "adapters and quantization look for linear calls"),
        *kind_of(config).insertion(config, targets).captured,
        Pass(
            copy_adapters.__name__,
            lambda graph: copy_adapters(graph, config.num_queries),
            "needs the adapters as lora_inject writes them",
        ),
        Pass(
            "label_logprobs",
            lambda graph: label_logprobs(graph, max_labels=labels),
            "needs to know the copies; splits off the program that evaluates",
        ),
        Pass(
            "bind_rows",
            lambda graph: bind_rows(graph, config.batch_size),
            "the copies must be in place to see which values depend on them",
        ),
        Pass("fold_constants", fold_constants, "shapes are known only once rows are bound"),
        Pass("group_queries", group_queries, "compares shapes, which are numbers by now"),
        Pass(
            "choose_rows_early",
            choose_rows_early,
            "detects rows by their number, which bind_rows fixes",
        ),
        Pass(
            "check_lengths",
            lambda graph: check_lengths(graph, measured="evaluate"),
            "cuts the folded constants; reads weights by name",
            reads_values=True,
        ),
    ]
    if config.weights != "fp32":
        order.append(
            Pass(
                "quantize_weights",
                lambda graph: quantize_weights(
                    graph,
                    weights=config.weights,
                    group_size=config.group_size,
                    steps=bool(config.scale_steps),
                ),
                "last: the other passes read weights by name and in floating point",
                reads_values=True,
            )
        )
    return order
