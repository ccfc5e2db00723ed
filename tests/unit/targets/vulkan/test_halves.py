"""Tensors of fp16: which they are, and what memory they save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.splits import tiny_graph
from zoexport.targets.executorch.lower_stages import fused_program
from zoexport.targets.vulkan.calls import Calls, calls_of
from zoexport.targets.vulkan.halves import with_halves
from zoexport.targets.vulkan.lower import FILE, footprints, lower_vulkan
from zoexport.targets.vulkan.places import place_tensors

ALIKE = ("q", "k", "v", "out", "gradient", "dq", "dk", "dv")


def calls(name: str, **settings: str) -> dict[str, Calls]:
    graph, _ = tiny_graph(name, target="android-gpu", **settings)
    return {
        name: with_halves(calls_of(fused_program(program)))
        for name, program in graph.programs.items()
    }


@pytest.mark.parametrize("name", ["llama_tied", "gpt2", "gemma3", "bloom"])
def test_what_calls_hand_to_one_another_is_fp16(name: str) -> None:
    for made in calls(name, weights="int4", lora__target_modules="all-linear").values():
        written = {one for call in made.calls for one in call.written()}
        expected = written - {*made.outputs}
        for call in made.calls:
            operands: dict[str, Any] = {**call.reads, **call.writes}
            if call.op.startswith("attention"):
                alike = {operands[key] in made.halves for key in ALIKE if key in operands}
                assert len(alike) == 1 and operands["lse"] not in made.halves
                expected -= {operands["lse"]}
            if call.op == "labels":
                kept = {key for key, one in operands.items() if one in made.halves}
                assert kept <= {"gradient"}
                expected -= {operands[key] for key in ("logits", "logprobs", "is_argmax")}
        attended = {
            operand
            for call in made.calls
            if call.op.startswith("attention")
            for operand in (*call.read(), *call.written())
        }
        assert made.halves - attended == expected - attended


def test_they_take_half_the_memory() -> None:
    graph, _ = tiny_graph("llama_tied", target="android-gpu", weights="int4")
    backward = graph.programs["layer.0.backward@48"]
    exact = calls_of(fused_program(backward))
    half = with_halves(exact)
    for tensor, words in exact.words.items():
        assert half.words[tensor] == (-(-words // 2) if tensor in half.halves else words)
    assert place_tensors(half)[1] < 0.75 * place_tensors(exact)[1]
    planned = footprints(graph, lambda *_: None, half=True)["layer.0.backward@48"].planned
    assert planned == 4 * place_tensors(half)[1]


def test_the_file_says_which(tmp_path: Path) -> None:
    graph, _ = tiny_graph("llama_tied", target="android-gpu", weights="int4")
    found = {}
    for half in (False, True):
        lower_vulkan(graph, tmp_path, lambda *_: None, half=half)
        content = json.loads((tmp_path / FILE).read_text())
        found[half] = json.dumps(content["programs"]).count('"half"')
        for program in content["programs"].values():
            assert all(isinstance(place, int) for place in program["outputs"])
    assert found[False] == 0 and found[True] > 50
