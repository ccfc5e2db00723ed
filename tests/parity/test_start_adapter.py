"""compile --adapter: a bundle that starts from PEFT's adapter has the losses of PEFT's model, and trains on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import zoexport
from tests.support.compiled import SEQ, Compiler
from tests.support.engine_parity import passed
from tests.support.tiers import slow_after
from tests.support.tiny_models import fixed, fixed_tokens, tiny
from zoexport.adapters.start import start_settings
from zoexport.cli.main import run
from zoexport.core.errors import ConfigError, StateError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
SETTINGS: dict[str, Any] = {
    "max_length": SEQ,
    "batch_size": 3,
    "weights": "fp32",
    "generate": False,
}
PLAIN = {"r": 5, "lora_alpha": 7, "target_modules": ["v_proj", "down_proj"], "lora_dropout": 0.1}
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama_tied", "mebp", PLAIN, {}),
    ("llama_tied", "prge", PLAIN, {}),
    (
        "qwen2",
        "mebp",
        {"r": 3, "target_modules": ["q_proj", "o_proj", "up_proj"], "layers_to_transform": [0]},
        {},
    ),
    # The first layer and the identical third have no adapter; only the third has a backward pass.
    ("gemma2", "mebp", {"r": 4, "target_modules": ["v_proj"], "layers_to_transform": [1]}, {}),
    ("gpt2", "mebp", {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True}, {}),
    (
        "llama_tied",
        "mebp",
        {
            **PLAIN,
            "use_rslora": True,
            "rank_pattern": {"v_proj": 3},
            "alpha_pattern": {"down_proj": 11},
        },
        {},
    ),
    ("qwen2", "spzo", {"r": 4, "target_modules": r".*\.(q|up)_proj"}, {}),
]


def adapter_of(name: str, given: dict[str, Any], folder: Path) -> Path:
    """An adapter as PEFT saves it, whose matrices are no longer what they began as."""
    model = get_peft_model(tiny(name), LoraConfig(**given))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_" in key:
                parameter.copy_(fixed(key, tuple(parameter.shape)) / parameter.shape[-1] ** 0.5)
    model.save_pretrained(str(folder))
    return folder


def their_loss(model: Any) -> float:
    tokens = fixed_tokens(3, SEQ)
    with torch.no_grad():
        return float(model.eval()(input_ids=tokens, labels=tokens, use_cache=False).loss)


def our_loss(session: Session) -> float:
    with Dataset() as dataset:
        for row in fixed_tokens(3, SEQ).tolist():
            dataset.add([(row[:-1], row[1:])], 0)
        return session.evaluate(dataset).loss


@pytest.mark.parametrize(("name", "method", "given", "more"), slow_after(5, CASES))
def test_the_loss_is_pefts(
    compiler: Compiler,
    name: str,
    method: str,
    given: dict[str, Any],
    more: dict[str, Any],
    tmp_path: Path,
) -> None:
    adapter = adapter_of(name, given, tmp_path / "adapter")
    expected = their_loss(PeftModel.from_pretrained(tiny(name), str(adapter)))
    assert abs(expected - their_loss(tiny(name))) > 0.003
    bundle = zoexport.compile(
        compiler.model(name),
        method=method,
        output=tmp_path / "bundle",
        adapter=adapter,
        settings={**SETTINGS, **more},
    )
    assert bundle.settings["lora.r"] == given["r"]
    with Session.open(bundle.path) as session:
        assert our_loss(session) == pytest.approx(expected, abs=2e-5)
    passed(bundle.path, 3)
    # What leaves at once is what came.
    bundle.export_adapter(tmp_path / "again")
    again = their_loss(PeftModel.from_pretrained(tiny(name), str(tmp_path / "again")))
    assert again == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adapter_of("llama_tied", PLAIN, tmp_path_factory.mktemp("start") / "adapter")


def test_int4_weights_and_text(compiler: Compiler, adapter: Path, tmp_path: Path) -> None:
    """Switched off, the adapter is away: the text is that of a bundle that never had one."""
    model = compiler.model("llama_tied")
    chosen = {**SETTINGS, "weights": "int4", "generate": True, "generate_context": 64}
    start = zoexport.compile(
        model, method="mebp", output=tmp_path / "start", adapter=adapter, settings=chosen
    )
    settings = {key: start.settings[key] for key in start.settings if key.startswith("lora.")}
    plain = zoexport.compile(
        model, method="mebp", output=tmp_path / "plain", settings={**chosen, **settings}
    )
    prompt = "The film is"
    texts = [one.generate(prompt, max_new_tokens=12).tokens for one in (start, plain)]
    assert texts[0] != texts[1]
    with start.generator() as generator:
        without = generator.generate(prompt, off=True, max_new_tokens=12)
        assert tuple(without.tokens) == tuple(texts[1])
        with_it = generator.generate(prompt, max_new_tokens=12)
        assert tuple(with_it.tokens) == tuple(texts[0])


def test_the_same_setting_may_be_said_and_another_is_one_message(
    compiler: Compiler, adapter: Path, tmp_path: Path
) -> None:
    model, output = compiler.model("llama_tied"), tmp_path / "bundle"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("method: mebp\nlora.r: 16\nlora.layers_to_transform: last:1\n")
    settings = {**SETTINGS, "lora.r": "5", "lora.target_modules": "down_proj, v_proj"}
    bundle = zoexport.compile(
        model, output=output, adapter=adapter, recipe=recipe, settings=settings
    )
    found = {key: bundle.settings[f"lora.{key}"] for key in ("r", "alpha", "layers_to_transform")}
    assert found == {"r": 5, "alpha": 7.0, "layers_to_transform": "all"}
    other = {
        "lora.r": 8,
        "lora.alpha": "7.5",
        "lora.target_modules": "q_proj",
        "lora.layers_to_transform": "last:1",
    }
    with pytest.raises(ConfigError) as error:
        zoexport.compile(
            model,
            method="mebp",
            output=tmp_path / "no",
            adapter=adapter,
            settings={**SETTINGS, **other},
        )
    for part in (
        "lora.r=8",
        "lora.alpha=7.5",
        "lora.target_modules=q_proj",
        "lora.layers_to_transform=last:1",
    ):
        assert part in error.value.where
    with pytest.raises(ConfigError, match="a LoraConfig beside an adapter"):
        zoexport.compile(model, adapter=adapter, lora=LoraConfig(), output=tmp_path / "no")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("senszoq", [], "chosen weights"),
        ("quzo", [], "method quzo"),
        ("quzo", ["--set", "train=lora"], "method quzo"),
        ("spzo", ["--set", "train=full"], "method spzo"),
        ("mezo", ["--set", "train=full"], "method mezo"),
    ],
)
def test_methods_that_cannot_start_from_one(
    method: str,
    more: list[str],
    words: str,
    adapter: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = ["compile", "nowhere", "--target", "host", "--method", method, *more]
    assert run([*line, "--adapter", str(adapter), "-o", str(tmp_path / "no")]) == 2
    said = capfd.readouterr().err
    assert words in said and "trains adapters of numbers" in said
    assert not (tmp_path / "no").exists()


def test_settings_of_a_pickled_adapter(adapter: Path, tmp_path: Path) -> None:
    pickled = shutil.copytree(adapter, tmp_path / "pickled")
    weights = pickled / "adapter_model.safetensors"
    torch.save(load_file(weights), pickled / "adapter_model.bin")
    expected = start_settings(pickled)
    weights.unlink()
    assert start_settings(pickled) == expected
    _describe(pickled, target_modules=".*(v|down)_proj")  # so that the names are read from the file
    assert "model.layers.0.self_attn.v_proj" in start_settings(pickled)["lora.target_modules"]


def _without_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def _dora(folder: Path) -> None:
    _describe(folder, use_dora=True)


def _other_rank(folder: Path) -> None:
    _describe(folder, r=6)


def _fewer_layers(folder: Path) -> None:
    _describe(folder, target_modules=["v_proj"])


def _cut_and_layers(folder: Path) -> None:
    _describe(folder, layers_to_transform=[1])
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def _describe(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (shutil.rmtree, "no such file"),
        (_without_weights, "adapter_model.safetensors"),
        (_dora, "use_dora"),
        (_other_rank, "lora_A"),
        (_fewer_layers, "down_proj"),
        (_cut_and_layers, "a file that cannot be read"),
    ],
)
def test_an_adapter_that_does_not_fit(
    spoil: Any, found: str, adapter: Path, compiler: Compiler, tmp_path: Path
) -> None:
    spoiled = shutil.copytree(adapter, tmp_path / "spoiled")
    spoil(spoiled)
    with pytest.raises(StateError, match=found):
        zoexport.compile(
            compiler.model("llama_tied"),
            method="mebp",
            output=tmp_path / "no",
            adapter=spoiled,
            settings=SETTINGS,
        )
    assert not (tmp_path / "no").exists()
