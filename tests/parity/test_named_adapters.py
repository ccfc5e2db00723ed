"""Adapters under names: loaded, switched and switched off between two texts of one session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.compiled import Compiler
from tests.support.generation import prompt_of
from tests.support.tiny_models import VOCAB_SIZE
from zoexport.api import Bundle
from zoexport.core.errors import ConfigError, StateError, ZoExportError
from zoexport.session import Dataset, Session, memory_usage

pytestmark = pytest.mark.parity
PROMPT = prompt_of(9, VOCAB_SIZE)
OPTIONS: Any = {"max_new_tokens": 12, "stop_tokens": ()}
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]


@pytest.fixture(scope="module")
def bundle(compiler: Compiler) -> Path:
    return compiler.bundle("llama", "mebp", lora__target_modules="all-linear", generate=True)


def adapter(bundle: Path, folder: Path, seed: int) -> Path:
    """A random adapter that a state was made of, as PEFT's files."""
    generator = torch.Generator().manual_seed(seed)
    with Session.open(bundle) as session:
        session.attach(folder / f"state-{seed}")
        for slot in session.slots():
            values = 0.2 * torch.randn(slot.shape, generator=generator)
            session.write_slot(slot.name, values.numpy())
        session.save()
    Bundle.open(bundle).export_adapter(folder / f"a{seed}", state=folder / f"state-{seed}")
    return folder / f"a{seed}"


def text_of_state(bundle: Path, state: Path) -> tuple[int, ...]:
    with Session.open(bundle) as session:
        session.attach(state, read_only=True)
        return session.generate(PROMPT, **OPTIONS).tokens


def test_adapters_are_switched_between_texts(bundle: Path, tmp_path: Path) -> None:
    folders = [adapter(bundle, tmp_path, seed) for seed in (1, 2)]
    expected = [text_of_state(bundle, tmp_path / f"state-{seed}") for seed in (1, 2)]
    with Session.open(bundle) as session:
        plain = session.generate(PROMPT, **OPTIONS).tokens
        assert len({plain, *expected}) == 3
        assert session.adapters == ()
        for name, folder in zip("ab", folders, strict=True):
            session.load_adapter(name, folder)
        assert session.adapters == ("a", "b")
        for _ in range(2):
            for name, tokens in zip("ab", expected, strict=True):
                # Caches of one adapter are none of another.
                made = session.generate(PROMPT, adapter=name, keep=True, **OPTIONS)
                assert (made.tokens, made.kept_tokens) == (tokens, 0)
            assert session.generate(PROMPT, keep=True, **OPTIONS).tokens == plain
        session.load_adapter("a", folders[1])
        assert session.generate(PROMPT, adapter="a", **OPTIONS).tokens == expected[1]
        session.drop_adapter("a")
        with pytest.raises(ConfigError, match="one of b"):
            session.generate(PROMPT, adapter="a", **OPTIONS)
        with pytest.raises(ConfigError, match="no adapter"):
            session.drop_adapter("a")


def test_a_bundle_holds_several(bundle: Path, tmp_path: Path) -> None:
    folder = adapter(bundle, tmp_path, 3)
    Bundle.open(bundle).export_adapter(
        tmp_path / "a.gguf", state=tmp_path / "state-3", format="gguf"
    )
    opened = Bundle.open(bundle)
    with opened.generator(adapters={"peft": folder, "gguf": tmp_path / "a.gguf"}) as generator:
        assert generator.adapters == ("gguf", "peft")
        texts = [
            generator.generate("The film", adapter=name, max_new_tokens=9).tokens
            for name in (None, "peft", "gguf")
        ]
    assert texts[0] != texts[1] == texts[2]


def test_slots_that_were_not_given_are_the_bundle_s(bundle: Path) -> None:
    with Session.open(bundle) as session:
        plain = session.generate(PROMPT, **OPTIONS).tokens
        slot = next(slot for slot in session.slots() if slot.name.startswith("lora_B."))
        values = torch.full(slot.shape, 0.3).numpy()
        session.write_adapter("one", slot.name, values)
        one = session.generate(PROMPT, adapter="one", **OPTIONS).tokens
        assert session.generate(PROMPT, **OPTIONS).tokens == plain
        session.write_slot(slot.name, values)
        assert session.generate(PROMPT, **OPTIONS).tokens == one != plain
        values[0, 0] = float("nan")
        with pytest.raises(ConfigError, match="not finite"):
            session.write_adapter("other", slot.name, values)
        assert session.adapters == ("one",)


def test_training_is_left_alone(bundle: Path, tmp_path: Path) -> None:
    """Five steps, an adapter, text and five steps leave the state of ten steps, byte for byte."""
    folder = adapter(bundle, tmp_path, 4)
    for name, stops in (("once", [10]), ("twice", [5, 10])):
        with Session.open(bundle) as session, Dataset() as dataset:
            for row in range(4):
                tokens = prompt_of(12 + row, VOCAB_SIZE)
                dataset.add([(tokens, [*tokens[1:], -100])])
            session.attach(tmp_path / name)
            session.configure(lr_scheduler_type="constant")
            for steps in stops:
                session.train(dataset, steps)
                session.load_adapter("a", folder)
                trained = session.generate(PROMPT, keep=True, **OPTIONS)
                other = session.generate(PROMPT, adapter="a", keep=True, **OPTIONS)
                assert other.tokens == text_of_state(bundle, tmp_path / "state-4") != trained.tokens
    (snapshot,) = (path.name for path in (tmp_path / "once").glob("snapshot-*"))
    for file in ("trajectory.log", snapshot, "state.json", "run.json"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()


def test_memory_returns(bundle: Path, tmp_path: Path) -> None:
    folder = adapter(bundle, tmp_path, 5)

    def once(session: Session) -> None:
        session.load_adapter("a", folder)
        session.generate(PROMPT, adapter="a", keep=True, **OPTIONS)
        session.drop_adapter("a")

    with Session.open(bundle) as session:
        once(session)
        before = memory_usage().anonymous_bytes
        for _ in range(10):
            once(session)
        assert memory_usage().anonymous_bytes - before < 1 << 20


def replace(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        (key,) = (key for key in tensors if key.endswith(name))
        tensors[key] = make(tensors[key]).contiguous()

    return change


def config(**values: Any) -> Change:
    return lambda described, _: described.update(values)


def renamed(old: str, new: str) -> Change:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            tensors[key.replace(old, new)] = tensors.pop(key)

    return change


ONE = "layers.0.self_attn.q_proj.lora_A.weight"
BAD: dict[str, Change] = {
    "rank": config(r=8),
    "alpha": config(lora_alpha=3),
    "no rank": lambda described, _: described.pop("r"),
    "rank of text": config(r="4"),
    "rank of truth": config(r=True),
    "kind": config(peft_type="LOHA"),
    "rslora": config(use_rslora=True),
    "patterns": config(rank_pattern={"q_proj": 2}),
    "bias": config(bias="all"),
    "no bias": config(bias=None),
    "initialization": config(init_lora_weights="pissa"),
    "missing": lambda _, tensors: tensors.popitem(),
    "also": lambda _, tensors: tensors.update({"x.lora_A.weight": torch.zeros(1)}),
    "twice": lambda _, tensors: tensors.update(
        {ONE: next(value for key, value in tensors.items() if key.endswith(ONE)).clone()}
    ),
    "shape": replace(ONE, lambda values: values.T),
    "dtype": replace(ONE, lambda values: values.to(torch.int32)),
    "not a number": replace(ONE, lambda values: values * float("nan")),
    "too large": replace(ONE, lambda values: torch.full(values.shape, 1e300, dtype=torch.double)),
}
GOOD: dict[str, Change] = {
    "half": replace(ONE, torch.Tensor.half),
    "bfloat16": replace(ONE, torch.Tensor.bfloat16),
    "double": replace(ONE, torch.Tensor.double),
    "named": renamed(".weight", ".default.weight"),
    "without prefix": renamed("base_model.model.", ""),
    "plain": config(init_lora_weights="gaussian", use_dora=False, rank_pattern={}, extra=1),
}


@pytest.fixture(scope="module")
def good(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter(bundle, tmp_path_factory.mktemp("adapters"), 6)


def changed(good: Path, folder: Path, change: Change) -> Path:
    described = json.loads((good / "adapter_config.json").read_text())
    tensors = load_file(good / "adapter_model.safetensors")
    change(described, tensors)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(described))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_by_both_readers(
    bundle: Path, good: Path, tmp_path: Path, name: str
) -> None:
    bad = changed(good, tmp_path / "bad", BAD[name])
    with Session.open(bundle) as session:
        session.load_adapter("a", good)
        before = session.generate(PROMPT, adapter="a", **OPTIONS).tokens
        with pytest.raises(StateError, match="bad/adapter_"):
            session.load_adapter("a", bad)
        assert session.generate(PROMPT, adapter="a", **OPTIONS).tokens == before
    with pytest.raises(StateError, match="bad/adapter_"):
        Bundle.open(bundle).import_adapter(bad, format="peft", state=tmp_path / "state")


@pytest.mark.parametrize("name", GOOD)
def test_what_fits_is_read_alike_by_both_readers(
    bundle: Path, good: Path, tmp_path: Path, name: str
) -> None:
    folder = changed(good, tmp_path / "good", GOOD[name])
    Bundle.open(bundle).import_adapter(folder, format="peft", state=tmp_path / "state")
    with Session.open(bundle) as session:
        session.load_adapter("a", folder)
        tokens = session.generate(PROMPT, adapter="a", **OPTIONS).tokens
    assert tokens == text_of_state(bundle, tmp_path / "state")


@pytest.mark.parametrize(
    ("write", "part"),
    [
        (lambda folder: None, "adapter_config.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("[]"), "no object"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"12"), "safetensors"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "safetensors"),
    ],
)
def test_damaged_files(
    bundle: Path, good: Path, tmp_path: Path, write: Callable[[Path], object], part: str
) -> None:
    folder = changed(good, tmp_path / "folder", lambda *_: None)
    if part == "adapter_config.json":
        (folder / "adapter_config.json").unlink()
    write(folder)
    with Session.open(bundle) as session, pytest.raises(StateError, match=part):
        session.load_adapter("a", folder)


def test_an_adapter_of_another_model(compiler: Compiler, good: Path) -> None:
    other = compiler.bundle("gpt2", "mebp", lora__target_modules="all-linear", generate=True)
    with (
        Bundle.open(other).generator() as generator,
        pytest.raises(ZoExportError, match=r"adapter_model.safetensors: found no "),
    ):
        generator.load_adapter("a", good)


@pytest.mark.parametrize("name", ["", "a" * 129])
def test_names_that_are_none(bundle: Path, good: Path, name: str) -> None:
    with Session.open(bundle) as session, pytest.raises(ConfigError, match="adapter's name"):
        session.load_adapter(name, good)
