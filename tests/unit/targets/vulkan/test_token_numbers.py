"""token_numbers: programs of encoders say the same without integers, and what the engine makes of tokens is exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.rows import program
from tests.support.splits import arguments, tiny_graph
from tests.support.tiny_models import ENCODERS, fixed_tokens
from zoexport.core.errors import LoweringError
from zoexport.core.graph import Program
from zoexport.ir.graphs import aten, is_call, placeholders, zo
from zoexport.ir.row_ops import RowProgram, run_rows
from zoexport.targets.executorch.lower_stages import fused_program
from zoexport.targets.vulkan import calls as module
from zoexport.targets.vulkan.calls import calls_of
from zoexport.targets.vulkan.halves import with_halves
from zoexport.targets.vulkan.lower import footprints
from zoexport.targets.vulkan.token_numbers import with_float_tokens

IDS = [0, 1, 127, 128, 255, 256, 32_767, 32_768, 65_537, 250_001, 2**24 - 1]
"""At the ends of bytes and of their signs, and of three bytes."""


def computed_of_tokens(made: Program) -> list[Any]:
    """The calls that read tokens, or integers made of them; lookups and conversions aside."""
    lookups = (aten.embedding, zo.embedding_int4, aten._to_copy)
    integers = [placeholders(made)["tokens"]]
    for node in made.module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and {*integers} & {*node.all_input_nodes}:
            integers += [] if value.is_floating_point() else [node]
    return [
        node.target
        for node in made.module.graph.nodes
        if node.op == "call_function"
        and not is_call(node, *lookups)
        and {*integers} & {*node.all_input_nodes}
    ]


@pytest.mark.parametrize("name", ENCODERS)
def test_programs_say_the_same_without_integers(name: str) -> None:
    """Also of rows that end in padding, have some inside, or are padding alone."""
    graph, _ = tiny_graph(name, target="android-gpu", weights="int4")
    pad = graph.pad_token
    assert pad is not None
    changed = 0
    for made in graph.programs.values():
        given = arguments(graph, made)
        inputs = dict(zip(placeholders(made), given, strict=True))
        if "tokens" not in inputs:
            assert with_float_tokens(made) is made
            continue
        tokens = fixed_tokens(*inputs["tokens"].shape)
        tokens[0, 20:], tokens[0, 3], tokens[1] = pad, pad, pad
        inputs["tokens"] = tokens
        rewritten = with_float_tokens(made)
        changed += rewritten is not made
        # Rows of a table by a product with ones and zeros are the rows; masks are the same numbers.
        with torch.no_grad():
            expected, found = (one.module(*inputs.values()) for one in (made, rewritten))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert not computed_of_tokens(rewritten)
        assert [value.name for value in rewritten.inputs] == [value.name for value in made.inputs]
    assert changed >= 2
    assert all(found.planned > 0 for found in footprints(graph, lambda *_: None).values())


def test_causal_models_are_left_alone() -> None:
    graph, _ = tiny_graph("gpt2", target="android-gpu", weights="int4")
    assert all(with_float_tokens(made) is made for made in graph.programs.values())


def test_another_operator_on_tokens_is_one_message() -> None:
    made = program(lambda x: aten.remainder(x, 3) * 2.0, torch.arange(6).view(2, 3))
    made.inputs[0] = made.inputs[0].__class__("tokens", "tokens", "int64", (2, 3))
    with pytest.raises(LoweringError, match=r"found the operator aten\.remainder"):
        calls_of(fused_program(with_float_tokens(made)))


def row_programs(
    monkeypatch: pytest.MonkeyPatch, made: Program
) -> tuple[module.Calls, list[tuple[RowProgram, list[Any], list[Any]]]]:
    """The calls of a program, and its row programs with what they read and write."""
    found: list[tuple[RowProgram, list[Any], list[Any]]] = []
    write = module._Writer._rows

    def spied(
        self: Any, node: Any, program: RowProgram, inputs: list[Any], results: list[Any]
    ) -> None:
        found.append((program, inputs, results))
        write(self, node, program, inputs, results)

    monkeypatch.setattr(module._Writer, "_rows", spied)
    return calls_of(made), found


def test_tokens_become_numbers_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([IDS, IDS[::-1]])
    made = program(lambda x: aten._to_copy(x, dtype=torch.float32), tokens)
    calls, ((joined, inputs, results),) = row_programs(monkeypatch, fused_program(made))
    unpack, rows = calls.calls
    assert unpack.op == "unpack" and unpack.sizes["width"] == 8 * tokens.numel()
    assert unpack.written() == [inputs[0]] and rows.written() == results == calls.outputs
    of_bytes = tokens.view(torch.int8).float()
    (found,) = run_rows([of_bytes] * 3, joined.encoded(), joined.constants)
    assert found.flatten().tolist() == tokens.flatten().tolist()
    # fp16 has no 2,049.
    assert with_halves(calls).halves == {inputs[0]}


@pytest.mark.parametrize("width", [1, 2, 7, 32, 33])
def test_running_sums(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    x = torch.arange(3 * width, dtype=torch.float32).view(3, width) % 5
    made = program(lambda x: aten.cumsum(x, -1) * 1.0, x)
    calls, found = row_programs(monkeypatch, fused_program(made))
    values = {calls.calls[0].read()[0] if calls.calls else calls.outputs[0]: x}
    for one, inputs, results in found:
        made_of = run_rows([values[key] for key in inputs], one.encoded(), one.constants)
        values.update(zip(results, made_of, strict=True))
    torch.testing.assert_close(values[calls.outputs[0]].view(3, width), x.cumsum(1), rtol=0, atol=0)
    # The last sum is read by the product with 1, which may be fp16.
    assert len(found) == (width - 1).bit_length() + 1
    assert len(calls.exact) == (width - 1).bit_length()
