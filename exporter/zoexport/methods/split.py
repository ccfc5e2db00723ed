"""Passes of methods with layer granularity, with the reason for the position of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoexport.core.config import as_dict
from zoexport.core.target import Pass
from zoexport.trained import kind_of

if TYPE_CHECKING:
    from zoexport.core.graph import LayerGraph, TrainingGraph
    from zoexport.core.settings import TrainingSettings
    from zoexport.trained import Insertion

_LOGITS = 5 << 20
"""Maximum elements of the logits in one call of the output head; their gradient has as many."""
_LABEL_ROWS = (8, 64)
"""Minimum and maximum label rows of one call: a product of few rows is bound by reading weights."""


def split_passes(config: TrainingSettings, targets: list[str], *, copies: int = 1) -> list[Pass]:
    """Return the rewrites, in order.

    Args:
        config: the method's settings.
        targets: modules to train.
        copies: perturbed copies of a batch in one call of the programs.
    """
    from zoexport.ir.lengths import row_lengths
    from zoexport.passes.choose_sizes import choose_sizes
    from zoexport.passes.differentiate import differentiate
    from zoexport.passes.round_inputs import round_inputs
    from zoexport.passes.round_to_bf16 import round_to_bf16
    from zoexport.passes.save_products import save_products
    from zoexport.passes.score_labels import score_labels
    from zoexport.passes.split_layers import HEAD

    insertion = kind_of(config).insertion(config, targets)

    def size(graph: LayerGraph) -> LayerGraph:
        made = row_lengths(config.max_length, close=copies > 1)
        lengths = made if graph.any_length else [config.max_length]
        vocabulary = graph.programs[HEAD].outputs[0].sizes()[-1]
        rows = label_rows(vocabulary, config.batch_size * config.max_length)
        return choose_sizes(
            graph, rows=copies * config.batch_size, lengths=lengths, label_rows=rows
        )

    order = _layer_passes(insertion, copies * config.batch_size)
    order += [*insertion.families, *insertion.training]
    order += _quantized(config, insertion)
    order += _rotated(config)
    if config.activations == "int8":
        because = "replaces operators over quantized weights; their sizes follow"
        order.append(Pass("round_inputs", round_inputs, because))
    if config.compute == "bf16":
        because = "replaces operators over quantized weights, before gradients are traced"
        order.append(Pass("round_to_bf16", round_to_bf16, because))
    order.append(Pass("choose_sizes", size, "gradients are traced at the sizes that run"))
    if config.first_order:
        order.append(Pass("differentiate", differentiate, "needs the logits of the output head"))
        if as_dict(config)["activation_cache_mb"]:
            because = "cuts what backward programs compute, beside which it puts others"
            order.append(Pass("save_products", save_products, because))
    order.append(Pass("score_labels", score_labels, "takes the logits away"))
    return order


def _layer_passes(insertion: Insertion, rows: int) -> list[Pass]:
    """Return the rewrites of a captured model into programs of its layers, for ``rows`` sequences."""
    from zoexport.core.features import Feature
    from zoexport.passes.bind_rows import bind_rows
    from zoexport.passes.check_stages import check_stages
    from zoexport.passes.cleanup import cleanup
    from zoexport.passes.find_linears import find_linears
    from zoexport.passes.fold_constants import fold_constants
    from zoexport.passes.fuse_attention import fuse_attention
    from zoexport.passes.mask_padding import mask_padding
    from zoexport.passes.slice_places import slice_places
    from zoexport.passes.split_layers import split_layers

    return [
        Pass("cleanup", cleanup, "the later passes match patterns without no-ops"),
        Pass("find_linears", find_linears, "adapters and quantization look for linear calls"),
        *insertion.captured,
        Pass(
            "bind_rows",
            lambda graph: bind_rows(graph, _marker_rows(graph, rows)),
            "shapes must be numbers to be compared; a prime number of rows marks their sizes until they are chosen",
        ),
        Pass(
            "fold_constants",
            lambda graph: fold_constants(graph, keep=graph.parameters, largest=graph.length**2),
            "tables and masks become inputs that stages bind; parameters differ by stage, and may not be read yet",
        ),
        Pass("slice_places", slice_places, "places that an index names are constants by now"),
        Pass(
            "mask_padding", mask_padding, "runs what makes masks, of which tables are by now known"
        ),
        Pass("split_layers", split_layers, "compares layers, in which only weights differ by now"),
        Pass(
            "fuse_attention",
            fuse_attention,
            "finds attention as it was captured; looks at the masks that stages bind",
            wants=Feature.ATTENTION,
        ),
        Pass(
            "check_stages", check_stages, "runs programs at the captured length", reads_values=True
        ),
    ]


def recomputing_passes(config: TrainingSettings, targets: list[str], *, context: int) -> list[Pass]:
    """Return the rewrites for programs that generate by computing all tokens again for each new one, in order.

    They are for models whose layers keep another state than keys and values. Arguments as for
    :func:`decoding_passes`.
    """
    from zoexport.ir.lengths import row_lengths
    from zoexport.passes.choose_sizes import choose_sizes

    insertion = kind_of(config).insertion(config, targets)

    def size(graph: LayerGraph) -> LayerGraph:
        lengths = row_lengths(context) if graph.any_length else [context]
        return choose_sizes(graph, rows=1, lengths=lengths, label_rows=1)

    return [
        *_layer_passes(insertion, 1),
        *insertion.families,
        *_quantized(config, insertion),
        *_rotated(config),
        Pass("choose_sizes", size, "detects sizes by the captured ones"),
    ]


def decoding_passes(
    config: TrainingSettings,
    targets: list[str],
    *,
    context: int,
    lengths: list[int],
) -> list[Pass]:
    """Return the rewrites for generation programs with the same weights and parameters, in order.

    Args:
        config: the method's settings. targets: modules to train.
        context: maximum tokens of a prompt and its completion.
        lengths: tokens in one call of the layers, ascending.
    """
    from zoexport.passes.bind_rows import bind_rows
    from zoexport.passes.cache_attention import cache_attention
    from zoexport.passes.cleanup import cleanup
    from zoexport.passes.decode_sizes import decode_sizes
    from zoexport.passes.find_linears import find_linears
    from zoexport.passes.fold_constants import fold_constants
    from zoexport.passes.round_inputs import round_inputs
    from zoexport.passes.split_layers import split_layers

    insertion = kind_of(config).insertion(config, targets)
    rounded = Pass("round_inputs", round_inputs, "replaces operators that the passes before know")
    return [
        Pass("cleanup", cleanup, "the later passes match patterns without no-ops"),
        Pass("find_linears", find_linears, "adapters and quantization look for linear calls"),
        *insertion.captured,
        Pass("bind_rows", lambda graph: bind_rows(graph, 1), "one sequence is generated at a time"),
        Pass(
            "fold_constants",
            lambda graph: fold_constants(graph, keep=graph.parameters, largest=graph.length**2),
            "masks and tables over positions are then inputs, whose values tell what they do",
        ),
        Pass("split_layers", split_layers, "compares layers, in which only weights differ by now"),
        Pass(
            "cache_attention",
            lambda graph: cache_attention(graph, context),
            "finds attention as it was captured; looks at the masks that stages bind",
        ),
        *insertion.families,
        *_quantized(config, insertion),
        *_rotated(config),
        Pass(
            "decode_sizes",
            lambda graph: decode_sizes(graph, lengths),
            "detects sizes by the captured length, and rows that see each other by what is known of operators",
        ),
        *([rounded] if config.generate_activations == "int8" else []),
    ]


def _rotated(config: TrainingSettings) -> list[Pass]:
    """Return the passes for weights that are stored rotated; training and generation share them."""
    from zoexport.passes.rotate_inputs import rotate_inputs

    because = "finds layers by their weights, which are quantized by now"
    return [Pass("rotate_inputs", rotate_inputs, because)] if config.activations == "int8" else []


def _quantized(config: TrainingSettings, insertion: Insertion) -> list[Pass]:
    """Return the quantization passes, which follow the families and precede the choice of sizes."""
    from zoexport.passes.quantize_stages import quantize_stages

    quantize = Pass(
        "quantize_stages",
        lambda graph: quantize_stages(
            graph,
            weights=config.weights,
            group_size=config.group_size,
            steps=bool(config.scale_steps),
            int8=insertion.int8,
        ),
        "once for a family, so before there is one program for each length",
    )
    return [*([] if config.weights == "fp32" else [quantize]), *insertion.quantized]


def label_rows(vocabulary: int, most: int) -> int:
    """Return the labels in one call of the output head.

    One call of the layers has at most ``most``.
    """
    least, greatest = _LABEL_ROWS
    return min(max(least, min(greatest, _LOGITS // vocabulary // 8 * 8)), max(most, 1))


def _marker_rows(graph: TrainingGraph, wanted: int) -> int:
    """Return a prime >= ``wanted`` that marks rows: tables per row can be cut but not extended."""
    from zoexport.ir.lengths import marker_prime, numbers_of

    sizes: list[Any] = [graph.length, graph.max_length]
    sizes += [size for tensor in graph.weights.values() for size in tensor.shape]
    sizes += [size for slot in graph.slots for size in slot.shape]
    sizes += [len(places) for places in (graph.chosen or {}).values()]
    # Also avoid numbers in the graph, such as loop indices: rows are still symbols here.
    nodes = [node for program in graph.programs.values() for node in program.module.graph.nodes]
    sizes += [size for node in nodes for size in numbers_of(node)]
    rows = marker_prime(wanted, sizes, None)
    assert rows is not None
    return rows
