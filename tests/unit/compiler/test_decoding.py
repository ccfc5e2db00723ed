"""decoding: which context a bundle generates with, and what a model that cannot generate is told."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPTNeoConfig, GraniteMoeHybridConfig, Phi3Config

from tests.support.architectures import tiny_config
from tests.support.tiny_models import LLAMA_LIKE
from zoexport.compiler.decoding import Generating, generating_graph
from zoexport.compiler.plan import Plan, plan
from zoexport.core.graph import LayerGraph
from zoexport.ir.capture import capture
from zoexport.ir.graphs import arguments, is_call, zo


def _made(config: Any, **settings: Any) -> tuple[Plan, LayerGraph | Generating]:
    """Return the programs that a bundle of a model generates with, or why there are none."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    model.requires_grad_(False)
    given = {"weights": "fp32", "max_length": 24, "generate.context": 40, **settings}
    planned = plan("mebp", "host", given)
    # As when a bundle is compiled, the same model is captured twice.
    graph = capture(model, 24)
    return planned, generating_graph(planned, model, graph, lambda *_: None)


def test_longrope_generates_up_to_its_original_length() -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **factors}
    rope["original_max_position_embeddings"] = 32
    config = Phi3Config(**LLAMA_LIKE, rope_parameters=rope, original_max_position_embeddings=32)
    _, made = _made(config)
    assert isinstance(made, LayerGraph)
    assert made.max_labels == 32


def test_masks_that_replace_scores_by_a_number_are_known() -> None:
    sizes = {"vocab_size": 320, "hidden_size": 64, "num_layers": 2, "num_heads": 4}
    config = GPTNeoConfig(
        **sizes,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        max_position_embeddings=128,
    )
    _, made = _made(config)
    assert isinstance(made, LayerGraph)
    calls = [
        arguments(node)[9]
        for program in made.programs.values()
        for node in program.module.graph.nodes
        if is_call(node, zo.cached_attention)
    ]
    assert sorted({*calls}) == [0, 8]


def _calls(made: LayerGraph | Generating, *operators: Any) -> list[int]:
    """Return how many calls of each operator the programs have."""
    assert isinstance(made, LayerGraph)
    nodes = [node for program in made.programs.values() for node in program.module.graph.nodes]
    return [sum(is_call(node, operator) for node in nodes) for operator in operators]


def test_recurrent_layers_keep_their_states() -> None:
    hybrid = GraniteMoeHybridConfig(
        **LLAMA_LIKE,
        layer_types=["mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=16,
        mamba_n_groups=1,
        num_local_experts=0,
        shared_intermediate_size=128,
    )
    _, made = _made(hybrid)
    assert made.lengths[0] == 1
    calls = _calls(made, zo.cached_attention, zo.cached_conv, zo.cached_recurrence)
    assert calls == [len(made.lengths)] * 3
    planned, made = _made(hybrid, generate=False)
    assert isinstance(made, Generating)
    assert made.notes(planned.config) == []


def test_layers_without_caches_compute_all_tokens_again() -> None:
    _, made = _made(tiny_config("gpt_oss"))  # its scores have sinks
    assert made.lengths[0] > 1 and made.lengths[-1] == made.max_labels
    assert _calls(made, zo.cached_attention) == [0]
