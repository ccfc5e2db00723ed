"""Greedy generation token for token as transformers' own, with and without a trained adapter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.generation import (
    STEPS,
    adapted,
    greedy,
    prompt_of,
    random_adapter,
    reference,
)
from tests.support.tiers import slow_after
from tests.support.tiny_models import SLIDING_WINDOW, VOCAB_SIZE
from zoexport.core.errors import BundleError, ConfigError
from zoexport.passes import rotate_inputs
from zoexport.session import Bundle, Dataset, Session
from zoexport.testing import PackageEngine

pytestmark = pytest.mark.parity
QUICK = ("llama", "gemma3")
"""Two layers alike; windows and tables that differ by layer."""
ARCHITECTURES = (
    "gpt2",
    "qwen2",
    "qwen3",
    "mistral",
    "phi3",
    "olmo2",
    "opt",
    "gemma2",
    "llama_tied",
    "phi",
    "gpt_neox",
    "falcon",
    "bloom",
    "mpt",
    "granite",
    "cohere",
    "cohere2",
    "starcoder2",
    "stablelm",
)
APPLE = (
    "llama",
    "gemma3",
    "qwen2",
    "qwen3",
    "mistral",
    "phi3",
    "olmo2",
    "opt",
    "gpt2",
    "bloom",
    "gemma2",
)
ALL = {"lora__target_modules": "all-linear", "generate": True}
FP32: dict[str, Any] = {"compute": "fp32"}
ADDED = 40_000
"""Bytes: two tables (127, 16) of float32, and norms of 64."""


def follow(
    compiler: Compiler,
    name: str,
    method: str = "mebp",
    target: str = "host",
    lengths: Sequence[int] = (1, 37),
    steps: int = STEPS,
    **settings: Any,
) -> None:
    """Prompts of several lengths, without an adapter and with one."""
    bundle = compiler.bundle(name, method, target, **{**ALL, **settings})
    model = reference(compiler.model(name), bundle)
    engine = PackageEngine(Bundle.open(bundle)) if target == "ios-coreml" else None
    with Session.open(bundle, engine=engine) as session:
        for length in lengths:
            prompt = prompt_of(length, VOCAB_SIZE)
            made = session.generate(prompt, max_new_tokens=steps, stop_tokens=())
            assert list(made.tokens) == greedy(model, prompt, steps)
            assert (made.stop, made.prompt_tokens) == ("length", length)
        prompt = prompt_of(9, VOCAB_SIZE)
        before = greedy(model, prompt, steps)
        slots = random_adapter(session)
        with adapted(model, bundle, slots):
            after = greedy(model, prompt, steps)
        assert after != before, "the adapter must say something"
        options: Any = {"max_new_tokens": steps, "stop_tokens": ()}
        assert list(session.generate(prompt, **options).tokens) == after
        assert list(session.generate(prompt, untrained=True, **options).tokens) == before


@pytest.mark.parametrize(
    ("target", "name"),
    [*(("host", name) for name in QUICK), ("ios-mlx", "gemma3")],
)
def test_text_is_that_of_transformers(compiler: Compiler, target: str, name: str) -> None:
    follow(compiler, name, target=target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name"),
    [
        *(("host", name) for name in ARCHITECTURES),
        *(("ios-mlx", name) for name in APPLE if name != "gemma3"),
    ],
)
def test_text_of_other_architectures(compiler: Compiler, target: str, name: str) -> None:
    follow(compiler, name, target=target)


def test_text_of_a_package(compiler: Compiler) -> None:
    """Past the window of gemma3, by the evaluator."""
    follow(compiler, "gemma3", target="ios-coreml", lengths=(37,), steps=16, **FP32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in APPLE if name != "gemma3"])
def test_text_of_packages(compiler: Compiler, name: str) -> None:
    follow(compiler, name, target="ios-coreml", lengths=(37,), **FP32)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "ios-mlx", "ios-coreml"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("prge", {"weights": "int4"}),
        ("mezo", {"weights": "int8", "granularity": "layer"}),
        ("mebp", {"weights": "int4", "lora__target_modules": "all-linear"}),
    ],
    ids=["prge", "layers", "mebp"],
)
def test_text_beside_other_programs(
    compiler: Compiler, target: str, method: str, settings: dict[str, Any]
) -> None:
    """Programs of whole models hold or read the same weights."""
    own = FP32 if target == "ios-coreml" else {}
    settings = {"lora__target_modules": "attention", **settings}
    follow(compiler, "llama_tied", method, target, (37,), **settings, **own)
    bundle = compiler.bundle("llama_tied", method, target, **{**ALL, **settings, **own})
    off = compiler.bundle(
        "llama_tied", method, target, **{**ALL, **settings, **own, "generate": False}
    )
    added, before = (weights_bytes(path, target) for path in (bundle, off))
    assert added - before <= ADDED, "tables of positions and norms, no weights"


def weights_bytes(bundle: Path, target: str) -> int:
    """Of the files that hold weights."""
    files = (
        bundle / "weights.safetensors",
        bundle / "model.mlpackage/Data/com.apple.CoreML/weights/weight.bin",
    )
    return sum(path.stat().st_size for path in files if path.exists())


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_text_over_quantized_weights(compiler: Compiler, weights: str) -> None:
    follow(compiler, "gemma3", weights=weights)


@pytest.mark.parametrize("name", slow_after(1, ["llama_tied", "gemma3", "gpt2"]))
def test_text_over_rounded_inputs(compiler: Compiler, name: str) -> None:
    """What adapters read is not rounded."""
    settings = {"weights": "int4", "generate__activations": "int8"}
    follow(compiler, name, **settings)
    bundle = compiler.bundle(name, "mebp", **{**ALL, **settings})
    assert {"zoexport::rounded_linear.out", "zoexport::cached_attention.out"} <= set(
        required_ops(bundle)
    )


ZEROTH_ORDER = [
    ("gemma3", "prge", {}),
    ("gpt2", "mezo", {"generate__activations": "int8"}),
    ("opt", "prge", {"activations": "fp32"}),
    ("llama_tied", "fzoo", {"weights": "int8"}),
]
"""Windows; positions that are learned."""


@pytest.mark.parametrize(("name", "method", "settings"), slow_after(1, ZEROTH_ORDER))
def test_text_over_rotated_weights(
    compiler: Compiler,
    name: str,
    method: str,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What layers read is rotated where training rounds it, whether or not generating does."""
    monkeypatch.setattr(rotate_inputs, "MINIMUM_GAIN", 1e-9)
    settings = {"weights": "int4", "seed": 5, **settings}
    follow(compiler, name, method, **settings)
    manifest = Bundle.open(compiler.bundle(name, method, **ALL, **settings)).manifest
    assert bool(manifest["rotated_weights"]) is (manifest["settings"]["activations"] == "int8")


def required_ops(bundle: Path) -> list[str]:
    """Operators that a runtime must have, which it is asked for when a bundle is opened."""
    found: list[str] = json.loads((bundle / "manifest.json").read_text())["required_ops"]
    return found


def test_local_attention_keeps_its_window_alone(compiler: Compiler) -> None:
    bundle = compiler.bundle("gemma3", "mebp", **ALL)
    entry = json.loads((bundle / "manifest.json").read_text())["generate"]
    rows = {
        program["family"]: {
            value["shape"][1] for value in program["inputs"] if value["role"] == "cache"
        }
        for program in entry["programs"]
    }
    local, far = (rows[entry["stages"][number]["forward"]] for number in (1, 3))
    assert (local, far) == ({SLIDING_WINDOW}, {entry["context"]})


def test_generating_leaves_training_alone(compiler: Compiler, tmp_path: Path) -> None:
    """Five steps, text, five steps leave the state of ten steps, byte for byte."""
    cases: list[tuple[str, dict[str, Any]]] = [
        ("mebp", {}),
        ("prge", {"num_queries": 2}),
    ]
    for method, settings in cases:
        bundle = compiler.bundle("qwen2", method, generate=True, **settings)
        texts = []
        for name, stops in (("once", [10]), ("twice", [5, 10])):
            with Session.open(bundle) as session, Dataset() as dataset:
                for row in range(4):
                    tokens = prompt_of(12 + row, VOCAB_SIZE)
                    dataset.add([(tokens, [*tokens[1:], -100])])
                session.attach(tmp_path / method / name)
                # A linear one hangs on the total of steps.
                session.configure(lr_scheduler_type="constant")
                for steps in stops:
                    session.train(dataset, steps)
                    texts.append(
                        session.generate(
                            prompt_of(7, VOCAB_SIZE), max_new_tokens=9, stop_tokens=()
                        ).tokens
                    )
        assert texts[0] == texts[2]
        once, twice = (tmp_path / method / name for name in ("once", "twice"))
        (snapshot,) = (path.name for path in once.glob("snapshot-*"))
        for file in ("trajectory.log", snapshot, "state.json", "run.json"):
            assert (once / file).read_bytes() == (twice / file).read_bytes()


def test_a_callback_ends_the_text(compiler: Compiler) -> None:
    with Session.open(compiler.bundle("llama", "mebp", **ALL)) as session:
        prompt = prompt_of(9, VOCAB_SIZE)
        whole = session.generate(prompt, max_new_tokens=20, stop_tokens=())
        seen: list[int] = []

        def three(token: int) -> bool:
            seen.append(token)
            return len(seen) == 3

        made = session.generate(prompt, max_new_tokens=20, stop_tokens=(), on_token=three)
        assert (made.stop, made.tokens) == ("caller", whole.tokens[:3])
        stop = whole.tokens[5]
        made = session.generate(prompt, max_new_tokens=20, stop_tokens=[stop])
        assert (made.stop, made.tokens) == ("eos", whole.tokens[: whole.tokens.index(stop)])

        def failing(_: int) -> bool:
            raise KeyError("the host's own")

        with pytest.raises(KeyError):
            session.generate(prompt, max_new_tokens=20, on_token=failing)


@pytest.mark.slow
def test_the_context_ends_the_text(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", "mebp", **ALL, generate__context=31)
    model = reference(compiler.model("llama"), bundle)
    with Session.open(bundle) as session:
        prompt = prompt_of(20, VOCAB_SIZE)
        made = session.generate(prompt, max_new_tokens=STEPS, stop_tokens=())
        assert list(made.tokens) == greedy(model, prompt, 12)
        assert made.stop == "length"
        with pytest.raises(ConfigError, match=r"31 tokens.*generate.context = 31"):
            session.generate(prompt_of(31, VOCAB_SIZE))


def test_what_cannot_be_generated(compiler: Compiler) -> None:
    with Session.open(compiler.bundle("llama", "mebp", **ALL)) as session:
        for prompt, most, part in (
            ([], 1, "prompt: found no tokens"),
            ([3, VOCAB_SIZE], 1, f"token {VOCAB_SIZE}"),
            ([3], 0, "max_new_tokens"),
        ):
            with pytest.raises(ConfigError, match=part):
                session.generate(prompt, max_new_tokens=most)
    with (
        Session.open(compiler.bundle("llama", "mebp")) as session,
        pytest.raises(BundleError, match="generate=false"),
    ):
        session.generate([3])
