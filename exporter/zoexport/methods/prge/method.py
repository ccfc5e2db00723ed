"""P-RGE and MeZO: the order of their passes, with the reason for each place.

Passes and reference are imported where they are used: training looks a method's settings up without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoexport.core.types import Method, Pass
from zoexport.methods import methods
from zoexport.methods.prge.config import MezoConfig, PrgeConfig
from zoexport.trained import kind_of

if TYPE_CHECKING:
    from zoexport.core.step_plan import Copies


def passes(config: PrgeConfig, targets: list[str]) -> list[Pass]:
    """Zeroth-order training of LoRA's B with A frozen (LoRA-FA); ``targets`` are the modules to adapt."""
    from zoexport.methods.split import split_passes
    from zoexport.steps.spsa import spsa

    difference = config.difference if isinstance(config, MezoConfig) else "central"
    staged = config.staged
    order = split_passes(config, targets) if staged else _whole(config, targets)
    copies: Copies = "one"
    if config.together:
        copies = "stage" if staged else "call"
    return [*order, spsa(config.queries, copies, difference)]


def _whole(config: PrgeConfig, targets: list[str]) -> list[Pass]:
    from zoexport.passes.bind_rows import bind_rows
    from zoexport.passes.check_lengths import check_lengths
    from zoexport.passes.choose_rows_early import choose_rows_early
    from zoexport.passes.cleanup import cleanup
    from zoexport.passes.dual_forward import dual_forward, sequential_forward
    from zoexport.passes.find_linears import find_linears
    from zoexport.passes.fold_constants import fold_constants
    from zoexport.passes.group_queries import group_queries
    from zoexport.passes.label_logprobs import label_logprobs
    from zoexport.passes.quantize_weights import quantize_weights
    from zoexport.passes.rotate_inputs import rotate_inputs

    most = config.batch * config.seq_len
    labels = min(config.labels or most, most)
    copy_adapters = dual_forward if config.together else sequential_forward
    order = [
        Pass("cleanup", cleanup, "the later passes match patterns without no-ops"),
        Pass("find_linears", find_linears, "adapters and quantization look for linear calls"),
        *kind_of(config).insertion(config, targets).captured,
        Pass(
            copy_adapters.__name__,
            lambda graph: copy_adapters(graph, config.queries),
            "needs the adapters as lora_inject writes them",
        ),
        Pass(
            "label_logprobs",
            lambda graph: label_logprobs(graph, max_labels=labels),
            "needs to know the copies; splits off the program that evaluates",
        ),
        Pass(
            "bind_rows",
            lambda graph: bind_rows(graph, config.batch),
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
            "cuts the folded constants; compares numbers, so before int8 rounding magnifies differences",
            reads_values=True,
        ),
    ]
    if config.activations == "int8":
        order.append(
            Pass(
                "rotate_inputs",
                lambda graph: rotate_inputs(graph, measured="evaluate"),
                "rotates weights, so before they are quantized; runs a program, so once rows are bound",
                reads_values=True,
            )
        )
    if config.weights != "fp32":
        order.append(
            Pass(
                "quantize_weights",
                lambda graph: quantize_weights(
                    graph,
                    weights=config.weights,
                    activations=config.activations or "fp32",
                    group_size=config.group_size,
                ),
                "last: the other passes read weights by name and in floating point",
                reads_values=True,
            )
        )
    return order


methods.register(
    "prge",
    Method(
        name="prge",
        summary="zeroth-order LoRA-FA; all 2q perturbed copies in one forward pass (P-RGE)",
        config=PrgeConfig,
        passes=passes,
        reference_class="zoexport.methods.prge.reference:PrgeReference",
    ),
)
methods.register(
    "mezo",
    Method(
        name="mezo",
        summary="zeroth-order LoRA-FA; one perturbed copy a forward pass (MeZO, the baseline)",
        config=MezoConfig,
        passes=passes,
        reference_class="zoexport.methods.prge.reference:MezoReference",
    ),
)
