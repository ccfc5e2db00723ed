"""check_cached: verify that layers with a cache give the same results as layers without.

The graph is unchanged. Each captured layer runs on random values of a few tokens; the layer with a
cache runs on the same tokens, first several at once and then one by one. The results must be equal:
this detects data flow between tokens outside attention and the operators that carry a state.
"""

from __future__ import annotations

import torch

from zoexport.core.errors import VerifyError, first_line
from zoexport.core.graph import LayerGraph, Program, Stage
from zoexport.ir.graphs import arguments, copy_program, is_call, zo
from zoexport.ir.lengths import set_length
from zoexport.passes.check_stages import trial_value
from zoexport.passes.decode_sizes import tables_as_rows

_CLOSE = 1e-4
"""Relative to the largest value: sums of other lengths round differently."""
_AT_ONCE, _ALONE = 7, 4
"""Tokens that are given together, and then one by one; a window that is not much longer is left too."""
_LONGEST = 64


def check_cached(before: LayerGraph, graph: LayerGraph) -> None:
    """Compare every layer with what it was.

    Args:
        before: with the programs that see all tokens at once. graph: with those that read caches, and the same stages.

    Raises:
        VerifyError: a layer says something else.
    """
    done = set()
    for stage, captured in list(zip(graph.stages, before.stages, strict=True))[:-1]:
        if stage.forward not in done:
            done.add(stage.forward)
            _check(before, captured, graph, graph.programs[stage.forward])


def _check(before: LayerGraph, stage: Stage, graph: LayerGraph, cached: Program) -> None:
    windows = [
        arguments(node)[9]
        for node in cached.module.graph.nodes
        if is_call(node, zo.cached_attention) and arguments(node)[9] <= _LONGEST
    ]
    at_once = min(max([_AT_ONCE, *(window + 2 for window in windows)]), graph.length - _ALONE)
    total = at_once + _ALONE
    captured = before.programs[stage.forward]
    given = {value.name: trial_value(graph, cached, value) for value in cached.inputs}
    whole = copy_program(captured, captured.name)
    try:
        inputs = []
        for value in captured.inputs:
            if value.role == "weight" and stage.bind[value.name] not in graph.parameters:
                full = before.weights[stage.bind[value.name]]
            else:
                full = given[value.name]
            cut = value.role in ("tokens", "activation")
            inputs.append(full[:, :total].contiguous() if cut else full)
        set_length(whole, graph.length, total)
        with torch.no_grad():
            expected = whole.module(*inputs)
            found = _piecewise(graph, cached, given, at_once)
    except VerifyError:
        raise
    except Exception as error:  # sizes that a layer does not take raise many types
        raise _refused(cached, first_line(error)) from error
    for ours, theirs in zip(found, expected, strict=True):
        if not (ours - theirs).abs().max() <= _CLOSE * theirs.abs().max():
            raise _refused(cached, "something else where tokens come one after another")


def _piecewise(
    graph: LayerGraph, cached: Program, given: dict[str, torch.Tensor], at_once: int
) -> list[torch.Tensor]:
    caches = {
        value.name: torch.zeros(value.sizes()) for value in cached.inputs if value.role == "cache"
    }
    parts: list[list[torch.Tensor]] = []
    first = 0
    for count in (at_once, *[1] * _ALONE):
        part = copy_program(cached, cached.name)
        tables_as_rows(part, graph.length)
        set_length(part, graph.length, count)
        inputs = []
        for value in part.inputs:
            full = given[value.name]
            if value.role in ("tokens", "activation"):
                full = full[:, first : first + count].contiguous()
            elif value.role == "table":
                axis = next(axis for axis, size in enumerate(full.shape) if size != 1)
                full = full.narrow(axis, first, count)
            elif value.role == "cache":
                full = caches[value.name]
            elif value.role == "position":
                full = torch.tensor([first])
            elif value.role == "count":
                full = torch.tensor([count])
            inputs.append(full)
        results = dict(zip((v.name for v in part.outputs), part.module(*inputs), strict=True))
        for name, cache in caches.items():
            rows = [(first + one) % cache.shape[1] for one in range(count)]
            given_rows = results[name][0]
            for one, row in enumerate(rows):
                # A state is given once, after the last token.
                cache[:, row] = given_rows[:, min(one, given_rows.shape[1] - 1)]
        parts.append([results[value.name] for value in part.outputs if value.role == "activation"])
        first += count
    return [torch.cat(pieces, 1) for pieces in zip(*parts, strict=True)]


def _refused(program: Program, found: str) -> VerifyError:
    return VerifyError(
        f"[check_cached] program {program.name}",
        found=found,
        expected="layers whose tokens see each other through attention, recurrences and causal convolutions alone",
        fix="Report the model's architecture.",
    )
