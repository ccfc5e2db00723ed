"""Runs side by side on an accelerator take the steps of the methods' references."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from research.accelerator import folder
from research.accelerator.arms import Comparison
from research.accelerator.llama import Llama
from research.accelerator.noise import Noise
from research.accelerator.run import Prepared, measure
from research.accelerator.runs import FirstOrder, Lane, Rounded, Runs, ZerothOrder
from research.accelerator.split import Split
from research.accelerator.tasks import Choices, Part, Text
from research.accelerator.trained import Adapters, Chosen, Everything, Integers
from research.learning.page import until
from research.support.arms import Arm
from zoexport.core import int4, rng
from zoexport.core.config import parse
from zoexport.core.errors import ConfigError
from zoexport.data.examples import Candidate, Example
from zoexport.methods import methods

VOCABULARY, WIDTH, RANK, BATCH = 101, 96, 3, 2
CHOICES = (7, 90)
CPU = torch.device("cpu")
LANES = [Lane(0.02, 5), Lane(0.3, 5), Lane(0.02, (1 << 40) + 9)]
TARGETS = [
    f"model.layers.{layer}.{name}"
    for layer in (0, 1)
    for name in ("self_attn.v_proj", "mlp.up_proj")
]


def tiny(head: int = 20) -> LlamaForCausalLM:
    """Odd sizes, of heads too; weights that are far from zero."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=head,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def part(count: int) -> Part:
    """Prompts of different lengths."""
    torch.manual_seed(8)
    lengths = torch.randint(2, 11, (count,))
    tokens = torch.randint(VOCABULARY, (count, 10)) * (torch.arange(10) < lengths[:, None])
    return Part(tokens, lengths, torch.randint(2, (count,)))


def examples(data: Part, numbers: Sequence[int]) -> list[Example]:
    """Rows of a part as references take them."""
    found = []
    for number in numbers:
        tokens = data.tokens[number][: data.lengths[number]].tolist()
        labels = [-100] * (len(tokens) - 1)
        candidates = [Candidate(tokens, [*labels, choice]) for choice in CHOICES]
        found.append(Example(candidates, int(data.right[number])))
    return found


def config_of(method: str, **settings: str) -> Any:
    named = {key.replace("__", "."): value for key, value in settings.items()}
    common = {"loss": "choices", "max_length": "16", "batch_size": str(BATCH)}
    return parse(methods.get(method).config, {**common, **named})


def first_matrices(model: LlamaForCausalLM) -> dict[str, Tensor]:
    torch.manual_seed(4)
    return {name: torch.randn(model.get_submodule(name).in_features, RANK) for name in TARGETS}


def slots_of(first: dict[str, Tensor], model: LlamaForCausalLM) -> dict[str, Tensor]:
    slots = {}
    for name, a in first.items():
        slots[f"lora_A.{name}"] = a
        slots[f"lora_B.{name}"] = torch.zeros(RANK, model.get_submodule(name).out_features)
    return slots


def follow(runs: Runs, reference: Any, lane: int, data: Part, steps: int = 4) -> None:
    """A run's losses beside those of the reference."""
    seed, rate = LANES[lane].seed, LANES[lane].rate
    order = [
        *rng.permutation(seed, 0, len(data.tokens)),
        *rng.permutation(seed, 1, len(data.tokens)),
    ]
    for step in range(steps):
        numbers = order[step * BATCH : (step + 1) * BATCH]
        theirs = reference.step(examples(data, numbers), rate)["losses"]
        ours = runs.step()[lane].tolist()
        assert ours == pytest.approx(theirs, rel=2e-5, abs=5e-6)


ZEROTH = [
    ("prge", {}),
    ("fzoo", {}),
    ("prge", {"optimizer": "momentum", "horizon": "2"}),
    ("prge", {"optimizer": "adam", "horizon": "3"}),
    ("prge", {"optimizer": "muon"}),
]


@pytest.mark.parametrize(("method", "settings"), ZEROTH)
@pytest.mark.parametrize("lane", [1, 2])
def test_adapters_are_trained_as_by_the_reference(
    method: str, settings: dict[str, str], lane: int
) -> None:
    model, data = tiny(), part(5)
    chosen = {"num_queries": "3", "eps": "1e-2", "lora.r": str(RANK), **settings}
    config = config_of(method, seed=str(LANES[lane].seed), **chosen)
    first = first_matrices(model)
    runs = ZerothOrder(
        Llama.of(model, CPU),
        Choices({"train": data}, CPU, CHOICES),
        LANES,
        config,
        Adapters(Llama.of(model, CPU), first, config.lora_alpha / RANK),
        one_sided=method == "fzoo",
    )
    reference = methods.get(method).reference(model, config, slots_of(first, model))
    follow(runs, reference, lane, data)


def test_chosen_weights_are_trained_as_by_the_reference() -> None:
    model, data = tiny(), part(5)
    config = config_of("senszoq", num_queries="3", eps="1e-2", seed=str(LANES[2].seed))
    places, values = {}, []
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight"):
        weight = model.get_parameter(name).data.view(-1)
        places[name] = torch.randperm(len(weight))[:31].sort().values
        values.append(weight[places[name]].half())
        weight[places[name]] = 0
    llama = Llama.of(model, CPU)
    trained = Chosen(llama, places, torch.cat(values).float())
    task = Choices({"train": data}, CPU, CHOICES)
    runs = ZerothOrder(llama, task, LANES, config, trained)
    slots = {"sparse.values": torch.cat(values)} | {f"places.{n}": p for n, p in places.items()}
    follow(runs, methods.get("senszoq").reference(model, config, slots), 2, data)


def test_all_weights_are_trained_as_by_the_reference_with_the_same_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = tiny(), part(5)
    config = config_of("mezo", train="full", num_queries="2", eps="1e-2", seed=str(LANES[1].seed))
    slots = {name: value.data.clone() for name, value in model.named_parameters()}
    sizes = [value.numel() for value in slots.values()]

    class Specified(Everything):
        def noise(self, seeds: Sequence[int], queries: int, *, signs: bool) -> Noise:
            return Noise([*enumerate(sizes)], seeds, queries, CPU)

    llama = Llama.of(model, CPU)
    lanes = [Lane(lane.rate / 100, lane.seed) for lane in LANES]
    monkeypatch.setitem(globals(), "LANES", lanes)
    task = Choices({"train": data}, CPU, CHOICES)
    runs = ZerothOrder(llama, task, lanes, config, Specified(llama))
    follow(runs, methods.get("mezo").reference(model, config, slots), 1, data)


@pytest.mark.parametrize("tied", [True, False])
def test_two_blocks_are_trained_as_by_the_reference(tied: bool) -> None:
    model, data = tiny(), part(5)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(0.2 * torch.randn(VOCABULARY, WIDTH), False)
    chosen = {"train": "full", "split": "head", "perturbations": "2,3", "eps": "1e-2"}
    config = config_of("spzo", seed=str(LANES[0].seed), **chosen)
    slots = {name: value.data.clone() for name, value in model.named_parameters()}
    runs = Split(
        Llama.of(model, CPU),
        Choices({"train": data}, CPU, CHOICES),
        [Lane(LANES[0].rate / 100, LANES[0].seed)],
        config,
    )
    numbers = {name: number for number, name in enumerate(slots)}
    runs.noise = [
        Noise(
            [(numbers[name], slots[name].numel()) for name in block.parts(block.initial)],
            [LANES[0].seed],
            count,
            CPU,
        )
        for block, count in zip(runs.blocks, (2, 12), strict=True)
    ]
    reference = methods.get("spzo").reference(model, config, slots)
    order = rng.permutation(LANES[0].seed, 0, 5)
    for step in range(2):
        numbers_of = order[step * BATCH : (step + 1) * BATCH].tolist()
        theirs = reference.step(examples(data, numbers_of), LANES[0].rate / 100)["losses"]
        assert runs.step()[0].tolist() == pytest.approx(theirs, rel=5e-5, abs=5e-6)


def test_first_order_runs_take_the_references_steps() -> None:
    model, data = tiny(), part(5)
    config = config_of("mebp", lora__r=str(RANK), seed=str(LANES[1].seed), max_grad_norm="0.05")
    first, llama = first_matrices(model), Llama.of(model, CPU)
    trained = Adapters(llama, first, config.lora_alpha / RANK)
    task = Choices({"train": data}, CPU, CHOICES)
    runs = FirstOrder(llama, task, LANES, config, trained)
    follow(runs, methods.get("mebp").reference(model, config, slots_of(first, model)), 1, data)


@pytest.mark.parametrize("bits", [4, 8])
def test_integers_move_by_whole_steps_and_without_bias(bits: int) -> None:
    model, data = tiny(), part(5)
    config = config_of("quzo", weights=f"int{bits}", num_queries="3", eps="0.7")
    llama = Llama.of(model, CPU)
    names = [f"{name}.weight" for name in TARGETS]
    trained = Integers(llama, names, bits)
    weights = trained.weights(trained.initial[None])
    for name in names:
        weight = llama.parameters[name]
        codes = (int4.quantize_int4 if bits == 4 else int4.quantize_int8)(weight)
        back = (int4.dequantize_int4 if bits == 4 else int4.dequantize_int8)(*codes)
        own = weights.product(name, torch.eye(weight.shape[1])[None])[0].T
        torch.testing.assert_close(own, back)
    task = Choices({"train": data}, CPU, CHOICES)
    runs = Rounded(llama, task, [Lane(0.0, 1), Lane(20.0, 1)], config, trained)
    z = runs._directions()
    assert set(z.unique().tolist()) <= {-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0}
    assert runs._second is not None
    # Both are roundings of the same normal numbers: their product's mean is eps^2, that of a square is more.
    assert float((z * runs._second).mean()) == pytest.approx(0.49, rel=0.03)
    assert float(z.square().mean()) > 0.6
    gradients = torch.tensor([[1.0, -2.0, 0.5]] * 2) / 20
    runs.update(gradients, z)
    assert torch.equal(runs.values[0], trained.initial)
    apart = runs.values[1] - trained.initial
    wanted = -(gradients[0][:, None] * runs._second[0]).sum(0) * 20 / 3
    inside = (trained.initial.abs() < 4) & (wanted.abs() < 3)
    assert torch.equal(apart, apart.round())
    slope = float((apart * wanted)[inside].sum() / wanted[inside].square().sum())
    assert slope == pytest.approx(1, abs=0.02)


def test_text_is_predicted_as_by_transformers() -> None:
    model = tiny()
    torch.manual_seed(2)
    tokens = torch.randint(VOCABULARY, (3, 12))
    rows = Part(tokens, torch.full((3,), 12), torch.zeros(3, dtype=torch.int64))
    llama = Llama.of(model, CPU)
    runs = ZerothOrder(
        llama, Text({"train": rows, "test": rows}, CPU), LANES, config_of("mezo"), Everything(llama)
    )
    losses, rights = runs.evaluated("test")
    logits = model(tokens).logits[:, :-1]
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert losses == pytest.approx([float(wanted)] * 3, rel=1e-5)
    assert rights == pytest.approx([float((logits.argmax(-1) == tokens[:, 1:]).float().mean())] * 3)


def test_a_model_of_another_kind_is_refused() -> None:
    model = tiny()
    model.config.model_type = "qwen2"
    with pytest.raises(ConfigError, match="Llama-shaped"):
        Llama.of(model, CPU)


def test_noise_is_the_specification(  # of slots whose last block is not full, too
) -> None:
    seeds, slots = [3, (1 << 35) + 1], [(0, 6), (4, 9), (1 << 30, 4)]
    for signs, specified in ((False, rng.normals), (True, rng.signs)):
        drawn = Noise(slots, seeds, 2, CPU, signs=signs)(11)
        for number, seed in enumerate(seeds):
            for query in range(2):
                wanted = [specified(seed, tensor, query, 11, count) for tensor, count in slots]
                np.testing.assert_allclose(
                    drawn[number, query].numpy(), np.concatenate(wanted), rtol=2e-6, atol=2e-6
                )


def test_rates_are_tried_beyond_an_end_and_a_page_says_when_losses_are_reached(
    tmp_path: Path,
) -> None:
    tiny(head=16).save_pretrained(tmp_path / folder.MODEL)
    folder.write_parts(
        tmp_path, "films", {name: part(9) for name in ("train", "validation", "test")}
    )
    common = {
        "loss": "choices",
        "max_length": "16",
        "batch_size": "2",
        "eps": "1e-2",
        "weights": "int4",
    }
    slow = Arm("slow", "prge", {"num_queries": "4", "lora.r": "4"}, (1e-4, 1e-3))
    fast = Arm("fast", "fzoo", {"num_queries": "7", "lora.r": "4"}, (0.01, 0.1))
    comparison = Comparison("films", common, (slow, fast), steps=6, points=3, seeds=(0, 1))
    planned = {
        folder.key_of(slow, comparison): {"flops": 4_000_000_000_000, "bytes": 10},
        folder.key_of(fast, comparison): {"flops": 2_000_000_000_000, "bytes": 10},
    }
    model = {"name": "tiny", "weights": "float32"}
    folder.write_facts(tmp_path, {"model": model, "choices": CHOICES, "planned": planned})
    prepared = Prepared(tmp_path, CPU)
    found: list[dict[str, Any]] = []
    measure(
        prepared, comparison, {}, done=lambda arms: found.append(arms[-1]), may_begin=lambda: True
    )
    first, second = found
    # Slow rates learn little, so higher ones were tried.
    assert max(first["rates"]) > 1e-3
    assert {run["seed"] for run in first["runs"]} == {0, 1}
    assert first["runs"][0]["points"][-1]["steps"] == 6
    assert second["runs"][0]["points"][-1]["steps"] == 12  # as many operations
    again: list[list[dict[str, Any]]] = []
    measure(
        prepared,
        comparison,
        {one["key"]: one for one in found},
        done=lambda arms: again.append([*arms]),
        may_begin=lambda: False,
    )
    assert again[-1] == found


def test_operations_to_a_loss_lie_between_two_evaluations() -> None:
    def run(seed: int, *losses: float | None) -> dict[str, Any]:
        points = [{"steps": 10 * (n + 1), "loss": loss} for n, loss in enumerate(losses)]
        return {"rate": 0.1, "seed": seed, "points": points}

    arm = {"planned": {"flops": 1e12}, "runs": [run(0, 3.0, 2.0, 1.0), run(1, 1.5, 1.2, 1.1)]}
    assert until(arm, 0.1, 1.5) == pytest.approx([25.0, 10.0])
    assert until(arm, 0.1, 1.05) is None  # the other seed is not there
    arm["runs"] = [run(0, 3.0, None)]
    assert until(arm, 0.1, 2.0) is None
