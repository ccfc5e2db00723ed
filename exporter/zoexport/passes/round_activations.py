"""round_activations: the inputs of linear layers are rounded to 8-bit grids (QuZO, appendix B; docs/formats.md).

Before, in a split graph whose weights are not quantized yet::

    layer.0(hidden; W_q, W_k) -> ...    q = aten.linear(x, W_q, bias)
                                        k = aten.linear(x, W_k, bias)

After, each stage binding the formats of its own layers, three numbers each::

    layer.0(hidden; W_q, W_k, quzo.activation.W_q) -> ...
                                        r = zoexport.round_activations(x, quzo.activation.W_q)
                                        q = aten.linear(r, W_q, bias)
                                        k = aten.linear(r, W_k, bias)

An input is rounded once for all layers that read it with the same format. The format is data, so layers of one shape
stay one program for any grids. Left alone: layers that are not given, such as the output head, and
adapters of a layer, which read the input as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import Node

from zoexport.core.activation_grids import Format, int8
from zoexport.core.errors import VerifyError
from zoexport.core.graph import LayerGraph, Program, Stage, Value
from zoexport.ir.graphs import add_input, aten, call, is_call, keep_path, operand, placeholders, zo

FORMAT = "quzo.activation."
"""Before a parameter's name, the format of the layer's input: float32 (3)."""


def round_activations(
    graph: LayerGraph, modules: Sequence[str], formats: Mapping[str, Format] | None
) -> LayerGraph:
    """Round the inputs of the layers ``modules``; set ``graph.rounded``, which names their formats.

    Args:
        graph: after ``split_layers``, before ``quantize_stages``.
        modules: paths of linear layers in the Hugging Face model.
        formats: by module; None if only sizes are needed.

    Raises:
        VerifyError: a layer's linear call is missing, or only some stages of a program are given.
    """
    given = dict.fromkeys(modules, int8(1.0)) if formats is None else formats
    wanted = {f"{module}.weight": given[module] for module in modules}
    found: dict[str, str] = {}
    for program in graph.programs.values():
        stages = graph.stages_of(program)
        found |= _rewrite(graph, program, stages, wanted)
    graph.rounded = found
    missing = [name for name in wanted if name not in found]
    if missing:
        raise VerifyError(
            f"[round_activations] {missing[0]}",
            found="no linear call with it in any program",
            expected="a layer that the model calls",
            fix="Report the model's architecture.",
        )
    return graph


def _rewrite(
    graph: LayerGraph, program: Program, stages: list[Stage], wanted: Mapping[str, Format]
) -> dict[str, str]:
    """Round in one program; by parameter of a layer whose input is rounded, the weight with its format."""
    named = {node: local for local, node in placeholders(program).items()}
    rounded: dict[tuple[Node, tuple[Format, ...]], tuple[Node, str]] = {}
    found: dict[str, str] = {}
    for linear in list(program.module.graph.nodes):
        local = named.get(operand(linear, 1)) if is_call(linear, aten.linear) else None
        if local is None:
            continue
        names = [stage.bind.get(local, "") for stage in stages]
        formats = tuple(wanted[name] for name in names if name in wanted)
        if not formats:
            continue
        if len(formats) < len(stages):
            raise VerifyError(
                f"[round_activations] {local} in program {program.name}",
                found="a layer that some stages are to round and others are not",
                expected="all of them, or none",
                fix="Report the model's architecture.",
            )
        x = operand(linear)
        if (x, formats) not in rounded:
            numbers = _bound(graph, program, stages, local, dict(zip(names, formats, strict=True)))
            with program.module.graph.inserting_before(linear):
                made = call(program.module.graph, zo.round_activations.default, x, numbers)
            keep_path(made, linear)
            rounded[x, formats] = made, f"{FORMAT}{local}"
        made, held = rounded[x, formats]
        linear.update_arg(0, made)
        found |= {stage.bind[local]: stage.bind[held] for stage in stages}
    return found


def _bound(
    graph: LayerGraph,
    program: Program,
    stages: list[Stage],
    local: str,
    formats: Mapping[str, Format],
) -> Node:
    """Return the format input of the layer with weight ``local``; add it if it is missing."""
    name = f"{FORMAT}{local}"
    known = placeholders(program).get(name)
    if known is not None:
        return known
    for stage in stages:
        parameter = stage.bind[local]
        stage.bind[name] = f"{FORMAT}{parameter}"
        graph.weights[stage.bind[name]] = formats[parameter].tensor()
    return add_input(program, Value(name, "weight", "float32", (3,)))
