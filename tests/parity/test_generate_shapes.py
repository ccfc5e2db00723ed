"""Random sizes that nobody chose: greedy tokens as transformers', one after another and past windows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import compile_tiny
from tests.support.generation import adapted, greedy, prompt_of, random_adapter, reference
from tests.sweep.cases import Case
from tests.sweep.models import model_of
from zoexport.session import Session

pytestmark = pytest.mark.parity
QUICK = (3,)
SEEDS = (1, 2, 4, 5, 6, 7, 8, 9)


def random_case(seed: int) -> Case:
    """A model of odd sizes: widths that are no multiples of eight, heads of any number, a vocabulary of primes."""
    generator = random.Random(seed)
    kv_heads = generator.choice([1, 2, 3])
    heads = kv_heads * generator.choice([1, 2, 3])
    head_dim = generator.choice([6, 10, 18])
    return Case(
        architecture=generator.choice(["llama", "qwen2", "qwen3", "gemma3", "mistral", "gpt2"]),
        vocabulary=generator.choice([37, 211, 523]),
        hidden=heads * head_dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layers=generator.choice([1, 2, 3]),
        intermediate=generator.choice([22, 58, 90]),
        window=generator.choice([3, 7, 16]),
        tied=generator.random() < 0.5,
        std=0.2,
        weight_seed=seed,
    )


def follow(seed: int, folder: Path) -> None:
    """The model's own tokens, without and with a named adapter of an odd rank."""
    case = random_case(seed)
    model_of(case).save_pretrained(folder / "model")
    settings: dict[str, Any] = {"lora__target_modules": "all-linear", "lora__r": 1 + seed % 5}
    bundle = Path(
        compile_tiny(folder / "model", folder / "bundle", "mebp", generate=True, **settings)[
            "bundle"
        ]
    )
    model = reference(folder / "model", bundle)
    options: Any = {"max_new_tokens": 40, "stop_tokens": ()}
    with Session.open(bundle) as session:
        prompts = [prompt_of(length, case.vocabulary) for length in (1, 19)]
        plain = [greedy(model, prompt, 40) for prompt in prompts]
        for prompt, expected in zip(prompts, plain, strict=True):
            assert list(session.generate(prompt, **options).tokens) == expected, case
        with Session.open(bundle) as other:
            slots = random_adapter(other)
        for name, values in slots.items():
            session.write_adapter("odd", name, values.numpy())
        with adapted(model, bundle, slots):
            trained = greedy(model, prompts[1], 40)
        assert list(session.generate(prompts[1], adapter="odd", **options).tokens) == trained, case
        assert list(session.generate(prompts[1], **options).tokens) == plain[1]


@pytest.mark.parametrize("seed", QUICK)
def test_random_sizes(seed: int, tmp_path: Path) -> None:
    follow(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_more_random_sizes(seed: int, tmp_path: Path) -> None:
    follow(seed, tmp_path)
