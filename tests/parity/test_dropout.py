"""lora.dropout: the reference draws the same masks, PEFT computes the same with them, resumed runs are the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.tiny_models import fixed, fixed_tokens
from zoexport.compiler.plan import plan
from zoexport.core import rng
from zoexport.core.errors import ConfigError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
SHARE = 0.25
DROPPED = {"lora__dropout": SHARE, "lora__target_modules": "all-linear", "max_grad_norm": 0}


def _examples(count: int = 6) -> Dataset:
    data = Dataset()
    for number, row in enumerate(fixed_tokens(count, 21).tolist()):
        row = row[: 8 + 2 * number]
        data.add([(row[:-1], row[1:])], 0)
    return data


@pytest.mark.parametrize(
    ("name", "target", "settings"),
    [
        ("llama_tied", "host", {"weights": "int4", "gradient_accumulation_steps": 2}),
        ("gpt2", "host", {"loss": "choices", "batch_size": 2}),
        ("qwen2", "ios-mlx", {}),
        pytest.param("gemma3", "host", {"checkpoint_every": 2}, marks=pytest.mark.slow),
        pytest.param("opt", "android-cpu", {"weights": "int8"}, marks=pytest.mark.slow),
    ],
)
def test_parity_with_the_same_masks(
    compiler: Compiler, name: str, target: str, settings: dict[str, Any]
) -> None:
    bundle = compiler.bundle(name, "mebp", target, **{**DROPPED, **settings})
    passed(bundle, 4)


class _Masked(torch.nn.Module):
    """In the place of PEFT's Dropout: a mask of the specification, for one example at a time."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.example = number, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = rng.words(0, rng.DROPOUT | self.number, self.example, 0, x.numel())
        kept = torch.from_numpy(words >= int(SHARE * 2**32)).view_as(x)
        return torch.nn.functional.dropout(x, 0.0) * kept / (1 - SHARE)


def test_gradients_are_pefts(compiler: Compiler) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    bundle = compiler.bundle("llama", "mebp", **DROPPED)
    base = AutoModelForCausalLM.from_pretrained(compiler.model("llama"), dtype=torch.float32)
    with Session.open(bundle) as session, _examples() as data:
        values = {}
        for slot in session.slots():
            read = np.frombuffer(session.read_slot(slot.name), np.float32).reshape(slot.shape)
            given = fixed(slot.name, slot.shape).numpy() * 0.2 if "lora_B" in slot.name else read
            values[slot.name] = np.ascontiguousarray(given)
            session.write_slot(slot.name, values[slot.name])
        order = [slot.module for slot in session.slots() if slot.name.startswith("lora_B")]
        step = session.step(data, [0, 2, 5])
        gradients = {
            name: np.frombuffer(session.read_slot(name, gradient=True), np.float32)
            for name in values
        }
    config = LoraConfig(r=4, lora_alpha=16, lora_dropout=SHARE, target_modules=order)
    theirs = get_peft_model(base, config).double().train()
    parameters, masks = {}, []
    for number, module in enumerate(order):
        layer = theirs.base_model.model.get_submodule(module)
        assert isinstance(layer.lora_dropout["default"], torch.nn.Dropout)
        layer.lora_dropout["default"] = _Masked(number)
        masks.append(layer.lora_dropout["default"])
        for half in ("lora_A", "lora_B"):
            parameter = getattr(layer, half)["default"].weight
            parameters[f"{half}.{module}"] = parameter
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values[f"{half}.{module}"].T.copy()))
    losses = []
    rows = fixed_tokens(6, 21).tolist()
    for example, chosen in enumerate((0, 2, 5)):
        for mask in masks:
            mask.example = example
        row = torch.tensor([rows[chosen][: 8 + 2 * chosen]])
        logits = theirs(input_ids=row[:, :-1], use_cache=False).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, row[0, 1:]))
    loss = torch.stack(losses).mean()
    loss.backward()
    assert step.losses[0] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in parameters.items():
        expected = parameter.grad.T.numpy()
        error = np.linalg.norm(gradients[name].reshape(expected.shape) - expected)
        assert error < 1e-4 * np.linalg.norm(expected), name


def test_a_resumed_run_is_the_same_bytes_and_evaluation_drops_nothing(
    compiler: Compiler, tmp_path: Path
) -> None:
    bundle = compiler.bundle("llama", "mebp", **DROPPED)
    plain = compiler.bundle("llama", "mebp", **{**DROPPED, "lora__dropout": 0})
    finals = {}
    for name, parts in (("whole", [6]), ("parts", [2, 3, 1])):
        done = 0
        for count in parts:
            with Session.open(bundle) as session, _examples() as data:
                session.attach(tmp_path / name)
                for step in range(done, done + count):
                    session.step(data, [step % 6, (step + 1) % 6, (step + 3) % 6])
                session.save()
                finals[name] = [bytes(session.read_slot(slot.name)) for slot in session.slots()]
                evaluated = session.evaluate(data)
                assert session.evaluate(data) == evaluated
            done += count
    assert finals["whole"] == finals["parts"]
    # The same values in a bundle without dropout score the same.
    with Session.open(plain) as session, _examples() as data:
        for slot, value in zip(session.slots(), finals["whole"], strict=True):
            session.write_slot(slot.name, np.frombuffer(value, np.float32))
        without = session.evaluate(data)
        assert without.loss == pytest.approx(evaluated.loss, rel=1e-6)
        trained = session.step(data, [0, 1, 2]).losses[0]
    with Session.open(bundle) as session, _examples() as data:
        for slot, value in zip(session.slots(), finals["whole"], strict=True):
            session.write_slot(slot.name, np.frombuffer(value, np.float32))
        assert session.step(data, [0, 1, 2]).losses[0] != pytest.approx(trained, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("prge", {}, "a zeroth-order method subtracts"),
        ("spzo", {}, "a zeroth-order method subtracts"),
        ("quzo", {"train": "lora"}, "trains no adapters of floats"),
    ],
)
def test_zeroth_order_methods_refuse_it(
    method: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"lora\.dropout=0\.1.*{message}.*by backpropagation"):
        plan(method, "host", {"lora.dropout": "0.1", **settings})


@pytest.mark.parametrize("target", ["android-npu", "ios-coreml"])
def test_targets_where_it_was_not_compared_refuse_it(target: str) -> None:
    with pytest.raises(ConfigError, match=rf"target {target} has no inputs by which adapters"):
        plan("mebp", target, {"lora.dropout": "0.1"})


def test_a_manifest_whose_dropout_does_not_fit(compiler: Compiler, tmp_path: Path) -> None:
    from zoexport.core import manifest as manifests

    bundle = Path(shutil.copytree(compiler.bundle("llama", "mebp", **DROPPED), tmp_path / "b"))
    for change, message in (
        (lambda m: m["settings"].update({"lora.dropout": 1.0}), "a number from 0 to below 1"),
        (lambda m: _rename(m, "dropout.lora_B.none"), "another name or shape"),
    ):
        content = json.loads((bundle / "manifest.json").read_text())
        change(content)
        del content["bundle_id"]
        content["bundle_id"] = manifests.bundle_id(content)
        other = Path(shutil.copytree(bundle, tmp_path / message.replace(" ", "-")))
        (other / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(Exception, match=message):
            Session.open(other)


def _rename(manifest: dict[str, Any], name: str) -> None:
    for program in manifest["programs"]:
        for value in program["inputs"]:
            if value["role"] == "dropout":
                value["name"] = name
                return
