"""Merged models in transformers 4 and in mlx-lm: the logits of transformers 5, and the session's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.mlx_models import mlx_logits, mlx_model
from tests.support.rotary_configs import MODELS, rotary_config
from tests.support.smollm2 import compiled
from tests.support.tiny_models import fixed_tokens, from_config, tiny_tokenizer
from tests.support.verbs import verb
from zoexport.models.saved import save_folder
from zoexport.session import Dataset, Session

pytestmark = [pytest.mark.slow, pytest.mark.network]
PACKAGES = ("transformers==4.57.1", "huggingface_hub==0.36.0", "tokenizers==0.22.1")
TOKENS = [1, 504, 2107, 314, 253, 4385, 284, 8234, 2168, 563, 1900]
CODE = """
import sys, numpy, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
for line in sys.stdin:
    folder, *tokens = line.split()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    AutoTokenizer.from_pretrained(folder)("A film.")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[int(token) for token in tokens]])).logits[0]
    numpy.save(folder + "/logits.npy", logits.numpy())
"""


@pytest.fixture(scope="module")
def transformers_4(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: folders and tokens -> logits (tokens, vocabulary) of transformers 4."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # After its own packages, so that torch need not be installed again.
    places = [path for path in sys.path if path.endswith("site-packages")]
    (own / "shared.pth").write_text("\n".join(places))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--ignore-installed", *PACKAGES], check=True)

    def logits(calls: dict[Path, list[int]]) -> list[Any]:
        lines = [" ".join(map(str, (folder, *tokens))) for folder, tokens in calls.items()]
        command = [str(python), "-c", CODE]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return [np.load(folder / "logits.npy") for folder in calls]

    return logits


def _here(folder: Path, tokens: list[int]) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([tokens])).logits[0].numpy()


def test_tiny_models_in_transformers_4(transformers_4: Any, tmp_path: Path) -> None:
    for name in MODELS:
        save_folder(from_config(rotary_config(name)), tiny_tokenizer(), tmp_path / name)
    tokens = fixed_tokens(1, 24)[0].tolist()
    found = transformers_4({tmp_path / name: tokens for name in MODELS})
    for name, logits in zip(MODELS, found, strict=True):
        assert np.abs(logits - _here(tmp_path / name, tokens)).max() < 1e-4, name


@pytest.mark.parametrize("weights", ["fp32", "int4"])
def test_smollm2(transformers_4: Any, tmp_path: Path, weights: str) -> None:
    bundle, _ = compiled(
        "--target", "host", "--set", "max_length=64", "--set", f"weights={weights}"
    )
    folder = tmp_path / "merged"
    verb("adapter", "export", bundle, "--format", "merged", "--dtype", "fp32", "-o", folder)
    ours = _here(folder, TOKENS)[-1]
    (theirs,) = transformers_4({folder: TOKENS})
    assert np.abs(theirs[-1] - ours).max() < 1e-3
    assert np.abs(mlx_logits(mlx_model(folder), [TOKENS])[0, -1] - ours).max() < 1e-3
    logprobs = torch.from_numpy(ours).log_softmax(-1)
    with Session.open(bundle) as session:
        for label in (28, 260, int(logprobs.argmax())):
            with Dataset() as dataset:
                dataset.add([(TOKENS, [-100] * (len(TOKENS) - 1) + [label])], 0)
                assert -session.evaluate(dataset).loss == pytest.approx(
                    float(logprobs[label]), abs=1e-3
                )
