"""QuZO: its passes and its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zoexport.core.types import Pass
from zoexport.methods import methods
from zoexport.methods.quzo.config import QuzoConfig

if TYPE_CHECKING:
    import torch

    from zoexport.methods.quzo.reference import QuzoReference


@dataclasses.dataclass(frozen=True)
class QuzoMethod:
    """Zeroth-order training of integers; all 2q perturbed copies go through a layer together."""

    name: str = "quzo"
    summary: str = (
        "zeroth-order training of int8 and int4 weights themselves, which stay integers (QuZO)"
    )
    config: type = QuzoConfig

    def passes(self, config: QuzoConfig, targets: list[str]) -> list[Pass]:
        """The rewrites, in order. ``targets`` are the modules whose weights are trained."""
        from zoexport.methods.split import split_passes
        from zoexport.passes.lora_linears import HALVES, lora_linears
        from zoexport.passes.round_activations import round_activations
        from zoexport.passes.train_grid import train_grid
        from zoexport.steps.spsa import spsa

        full = config.train == "full"
        trained = targets if full else [f"{module}.{half}" for module in targets for half in HALVES]
        inject = Pass(
            "lora_linears",
            lambda graph: lora_linears(
                graph,
                targets,
                rank=config.lora_rank,
                alpha=config.lora_alpha,
                seed=config.seed,
            ),
            "finds weights by the model's names, which stages rename",
        )
        rounding = Pass(
            "round_activations",
            lambda graph: round_activations(
                graph, list(graph.activations or targets), graph.activations
            ),
            "finds layers by their weights, which stages bind",
        )
        train = Pass(
            "train_grid",
            lambda graph: train_grid(
                graph,
                trained,
                queries=config.queries,
                eps=config.eps,
                bits=config.perturbation_bits,
                estimator=config.estimator,
            ),
            "trains codes, which quantized stages bind",
        )
        order = split_passes(
            config,
            [] if full else [inject],
            whole=[rounding] if config.activation_bits == 8 else [],
            quantized=[train],
            int8=HALVES,
            first_order=False,
            copies=2 * config.queries,
        )
        return [*order, spsa(config.queries, "call")]

    def reference(
        self, model: torch.nn.Module, config: QuzoConfig, slots: Mapping[str, torch.Tensor]
    ) -> QuzoReference:
        """The method in plain PyTorch."""
        from zoexport.methods.quzo.reference import QuzoReference

        return QuzoReference(model, config, slots)


methods.register("quzo", QuzoMethod())
