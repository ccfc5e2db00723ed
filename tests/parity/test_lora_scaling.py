"""rsLoRA, and ranks and alphas by module: PEFT's own model has the same gradients, and loads what was trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.support.compiled import Compiler
from tests.support.engine_parity import passed
from tests.support.tiny_models import fixed
from tests.sweep.cases import Case
from tests.sweep.models import save
from zoexport.api import Bundle
from zoexport.compiler.build import compile_bundle
from zoexport.core.errors import ConfigError
from zoexport.session import Dataset, Session

pytestmark = pytest.mark.parity
#: Sizes that are multiples of nothing, and what a LoraConfig says of them.
MODELS: dict[str, tuple[Case, dict[str, Any]]] = {
    "llama": (
        Case(
            architecture="llama",
            hidden=27,
            heads=3,
            kv_heads=1,
            head_dim=10,
            layers=3,
            intermediate=53,
            vocabulary=61,
            std=0.2,
        ),
        {
            "use_rslora": True,
            "rank_pattern": {r"layers\.1\..*proj": 3, "down_proj": 7, "q_proj": 1},
            "alpha_pattern": {"layers.2.self_attn.v_proj": 2.5, "k_proj": 11},
        },
    ),
    "gpt2": (
        Case(
            architecture="gpt2",
            hidden=33,
            heads=3,
            layers=2,
            intermediate=41,
            vocabulary=67,
            std=0.2,
        ),
        {"rank_pattern": {"c_fc": 6, "h.0.attn.c_proj": 2}, "alpha_pattern": {"c_attn": 1.5}},
    ),
}
RANK, ALPHA = 5, 7.0
ROWS = [[3, 9, 4, 1, 30, 7, 12, 5, 8, 2, 44, 6, 17], [5, 2, 31, 9, 40], [8, 8, 1, 60, 0, 21, 13, 2]]


@pytest.fixture(scope="module", params=MODELS)
def compiled(request: Any, tmp_path_factory: Any) -> tuple[Path, Path, dict[str, Any]]:
    """A bundle, its model and the LoraConfig's fields."""
    case, given = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    save(case, folder / "model")
    settings: dict[str, Any] = {
        "max_length": 17,
        "batch_size": 2,
        "gradient_accumulation_steps": 2,
        "weights": "fp32",
        "generate": False,
        "max_grad_norm": 0,
        "lora.r": RANK,
        "lora.alpha": ALPHA,
        "lora.target_modules": "all-linear",
        "lora.use_rslora": bool(given.get("use_rslora")),
        "lora.rank_pattern": given.get("rank_pattern", {}),
        "lora.alpha_pattern": given.get("alpha_pattern", {}),
    }
    compile_bundle(
        str(folder / "model"),
        method="mebp",
        target="host",
        output=folder / "bundle",
        settings=settings,
        recipe=None,
        force=False,
        progress=lambda *_: None,
    )
    return folder / "bundle", folder / "model", given


def _examples() -> Dataset:
    data = Dataset()
    for row in ROWS:
        labels = [token if place % 3 else -100 for place, token in enumerate(row[1:])]
        data.add([(row[:-1], labels)], 0)
    return data


def _begin(session: Session) -> dict[str, np.ndarray]:
    """Slots whose B is not zero, in the session."""
    values = {}
    for slot in session.slots():
        read = np.frombuffer(session.read_slot(slot.name), np.float32).reshape(slot.shape)
        values[slot.name] = (
            fixed(slot.name, slot.shape).numpy() * 0.3 if slot.name.startswith("lora_B") else read
        )
        session.write_slot(slot.name, np.ascontiguousarray(values[slot.name]))
    return values


def _loss(model: Any, numbers: Sequence[int] = range(len(ROWS))) -> torch.Tensor:
    losses = []
    for row in (ROWS[number] for number in numbers):
        logits = model(input_ids=torch.tensor([row[:-1]]), use_cache=False).logits[0]
        labels = torch.tensor([token if place % 3 else -100 for place, token in enumerate(row[1:])])
        losses.append(torch.nn.functional.cross_entropy(logits.double(), labels))
    return torch.stack(losses).mean()


def _peft(folder: Path, given: dict[str, Any], modules: list[str]) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=modules,
        fan_in_fan_out=base.config.model_type == "gpt2",
        **given,
    )
    return get_peft_model(base, config).double()


def test_gradients_and_logits_are_pefts(
    compiled: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    bundle, folder, given = compiled
    with Session.open(bundle) as session, _examples() as data:
        session.attach(tmp_path / "state")
        values = _begin(session)
        modules = [slot.module for slot in session.slots() if slot.name.startswith("lora_B")]
        ranks = {slot.shape[0] for slot in session.slots() if slot.name.startswith("lora_B")}
        assert len(ranks) > 2, "ranks differ"
        step = session.step(data, [0, 1, 2, 2])
        gradients = {
            name: np.frombuffer(session.read_slot(name, gradient=True), np.float32)
            for name in values
        }
        session.save()
        trained = {name: bytes(session.read_slot(name)) for name in values}
        evaluated = session.evaluate(data).loss
        session.export_adapter(tmp_path / "from-session")
    theirs = _peft(folder, given, modules)
    parameters = {}
    for path, parameter in theirs.named_parameters():
        for half in ("lora_A", "lora_B"):
            if f".{half}.default.weight" in path:
                module = path.removeprefix("base_model.model.").partition(f".{half}.")[0]
                parameters[f"{half}.{module}"] = parameter
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(values[f"{half}.{module}"].T.copy()))
    assert parameters.keys() == values.keys()
    loss = _loss(theirs, [0, 1, 2, 2])
    loss.backward()
    assert step.losses[0] == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, parameter in parameters.items():
        expected = parameter.grad.T.numpy()
        found = gradients[name].reshape(expected.shape)
        assert np.linalg.norm(expected) > 1e-6, name
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < 1e-4, (name, error)

    Bundle.open(bundle).export_adapter(tmp_path / "peft", state=tmp_path / "state", format="peft")
    described = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert described["use_rslora"] == bool(given.get("use_rslora"))
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "from-session" / file).read_bytes() == (
            tmp_path / "peft" / file
        ).read_bytes()
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "peft")).eval()
    with torch.no_grad():
        for name, parameter in parameters.items():
            value = np.frombuffer(trained[name], np.float32).reshape(values[name].shape)
            parameter.copy_(torch.from_numpy(value.T.copy()))
        for row in ROWS:
            tokens = torch.tensor([row])
            ours, wanted = (
                model(input_ids=tokens, use_cache=False).logits.double()
                for model in (loaded, theirs.eval())
            )
            torch.testing.assert_close(ours, wanted, rtol=0, atol=1e-4)
        assert evaluated == pytest.approx(float(_loss(loaded)), rel=1e-5)

    # PEFT's own file of the same adapter, and back into a state.
    loaded.save_pretrained(str(tmp_path / "theirs"))
    Bundle.open(bundle).import_adapter(tmp_path / "theirs", format="peft", state=tmp_path / "again")
    with Session.open(bundle) as session:
        session.attach(tmp_path / "again", read_only=True)
        assert {name: bytes(session.read_slot(name)) for name in values} == trained


def test_parity_with_the_reference(compiled: tuple[Path, Path, dict[str, Any]]) -> None:
    passed(compiled[0], 4)


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("llama", "prge", {}),
        ("qwen2", "mezo", {"weights": "int4"}),
        pytest.param("llama", "spzo", {}, marks=pytest.mark.slow),
        pytest.param("llama", "quzo", {"train": "lora", "weights": "int8"}, marks=pytest.mark.slow),
    ],
)
def test_zeroth_order_methods(
    compiler: Compiler, name: str, method: str, settings: dict[str, Any]
) -> None:
    bundle = compiler.bundle(
        name,
        method,
        **settings,
        lora__use_rslora=True,
        lora__rank_pattern="{v_proj: 3}",
        lora__alpha_pattern="{q_proj: 6}",
    )
    passed(bundle, 4)


def test_a_gguf_file_of_the_session_is_that_of_the_command(
    compiler: Compiler, tmp_path: Path
) -> None:
    """B takes up powers of two of the scale, in both writers."""
    bundle = compiler.bundle(
        "llama", "mebp", lora__use_rslora=True, lora__rank_pattern="{v_proj: 1}", lora__r=4
    )
    with Session.open(bundle) as session, _examples() as data:
        session.attach(tmp_path / "state")
        session.step(data, [0, 1])
        session.save()
        session.export_adapter(tmp_path / "session.gguf", "gguf")
    Bundle.open(bundle).export_adapter(
        tmp_path / "verb.gguf", state=tmp_path / "state", format="gguf"
    )
    assert (tmp_path / "session.gguf").read_bytes() == (tmp_path / "verb.gguf").read_bytes()
    Bundle.open(bundle).export_adapter(tmp_path / "mlx", state=tmp_path / "state", format="mlx")
    for kind, path in (("gguf", "verb.gguf"), ("mlx", "mlx")):
        Bundle.open(bundle).import_adapter(
            tmp_path / path, format=kind, state=tmp_path / f"{kind}-state"
        )
        with Session.open(bundle) as session:
            session.attach(tmp_path / "state", read_only=True)
            before = {slot.name: bytes(session.read_slot(slot.name)) for slot in session.slots()}
        with Session.open(bundle) as session:
            session.attach(tmp_path / f"{kind}-state", read_only=True)
            assert before == {s.name: bytes(session.read_slot(s.name)) for s in session.slots()}
    tensors = load_file(tmp_path / "mlx" / "adapters.safetensors")
    assert {array.shape[0] for name, array in tensors.items() if name.endswith("lora_b")} == {4}


def test_alphas_that_one_number_cannot_say(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle(
        "llama", "mebp", lora__use_rslora=True, lora__rank_pattern="{v_proj: 3}"
    )
    with Session.open(bundle) as session, pytest.raises(ConfigError, match="powers of two of it"):
        session.export_adapter(tmp_path / "session.gguf", "gguf")
    for kind in ("gguf", "mlx"):
        with pytest.raises(ConfigError, match="powers of two of it"):
            Bundle.open(bundle).export_adapter(tmp_path / kind, format=kind)
    assert not list(tmp_path.iterdir())
