"""What of a program goes to the Vulkan delegate: what ExecuTorch's partitioner takes, where a product is among it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from zoexport.core.settings import TrainingSettings
from zoexport.core.types import TrainingGraph
from zoexport.targets.executorch.exported import is_product

_IDLE = {"FuseBatchNormPass", "FuseClampPass", "FuseQuantizedOpsTransform", "FoldQDQPass"}
"""Passes for convolutions and quantized activations."""
_BLOCKED = "op is in blocklist"
_BOUND = "reads a table that stages bind, of which the delegate takes constants alone"
_ALONE = "computed on the CPU, between kernels of ours: no matrix product is beside it"


def partitioner_of(config: TrainingSettings, graph: TrainingGraph, skipped: dict[str, str]) -> Any:
    """ExecuTorch's partitioner, which leaves parts without a product alone.

    Args:
        config: the method's settings. graph: what is lowered.
        skipped: gets why operators are left out, by the name of their schema; the first reason stays.
    """
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.exir.backend.partitioner import Partitioner, PartitionResult
    from executorch.exir.dialects._ops import ops

    bound = [] if graph.whole else [ops.edge.aten.embedding.default]
    inner = VulkanPartitioner({"force_fp16": config.compute == "fp16"}, operator_blocklist=bound)

    class OfProducts(Partitioner):
        def partition(self, exported_program: Any) -> Any:
            with _recorded(skipped):
                found = inner.partition(exported_program)
            nodes = list(exported_program.graph_module.graph.nodes)
            wanted = {
                node.meta["delegation_tag"]
                for node in nodes
                if "delegation_tag" in node.meta and is_product(_name(node))
            }
            for node in nodes:
                if node.meta.get("delegation_tag") in found.partition_tags.keys() - wanted:
                    del node.meta["delegation_tag"]
                    skipped.setdefault(_name(node), _ALONE)
            tags = {tag: spec for tag, spec in found.partition_tags.items() if tag in wanted}
            return PartitionResult(
                tagged_exported_program=found.tagged_exported_program, partition_tags=tags
            )

    return OfProducts()


def _name(node: torch.fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name)


@contextlib.contextmanager
def _recorded(skipped: dict[str, str]) -> Iterator[None]:
    """While this is open, ExecuTorch's partitioner says why it leaves an operator out."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanSupportedOperators

    said = VulkanSupportedOperators.log_skip

    def record(_: Any, node: torch.fx.Node, reason: str) -> None:
        said_so = f"ExecuTorch's Vulkan partitioner: {reason}"
        skipped.setdefault(_name(node), _BOUND if reason == _BLOCKED else said_so)

    VulkanSupportedOperators.log_skip = record
    try:
        yield
    finally:
        VulkanSupportedOperators.log_skip = said


@contextlib.contextmanager
def needed_steps_only() -> Iterator[None]:
    """While this is open, the delegate fuses int4 products alone, and passes that would find nothing do not run.

    A fused norm wants constant weights and a fused rotary embedding certain layouts, and nothing checks that before a
    phone runs them. The passes retrace the whole program each.
    """
    from executorch.backends.vulkan import vulkan_preprocess
    from executorch.backends.vulkan.patterns import fusable_patterns

    patterns, apply = dict(fusable_patterns), vulkan_preprocess.apply_passes

    def apply_needed(program: Any, passes: Any) -> Any:
        return apply(program, [step for step in passes if type(step).__name__ not in _IDLE])

    for name in patterns.keys() - {"quantized_linear"}:
        del fusable_patterns[name]
    vulkan_preprocess.apply_passes = apply_needed
    try:
        yield
    finally:
        vulkan_preprocess.apply_passes = apply
        fusable_patterns.clear()
        fusable_patterns.update(patterns)
