"""A vocabulary of 262,144 on zoexport's Vulkan engine: the head's matrix is more than one window of weights.

Two layers of Gemma3-1B's shape, with random weights, on whatever device Vulkan has; a CPU takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.verbs import verb
from zoexport.models.shapes import published, write_random
from zoexport.session import Dataset, Session
from zoexport.targets.vulkan.lower import FILE
from zoexport.targets.vulkan.places import MOST_BYTES

pytestmark = pytest.mark.slow
LAYERS = 2
SETTINGS = (
    "--target", "android-gpu", "--set", "lora.target_modules=all-linear", "--set", "max_length=16",
    "--set", "batch_size=1", "--set", "generate=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published configuration, but for its layers."""
    config = json.loads((published("gemma3-1b") / "config.json").read_text())
    cut = tmp_path_factory.mktemp("config")
    (cut / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    folder = tmp_path_factory.mktemp("model")
    write_random(cut, folder)
    return folder


def test_a_step_of_gemma_s_shape(model: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    verb("compile", model, *SETTINGS, "-o", bundle)
    content = json.loads((bundle / FILE).read_text())
    # 262,144 rows of 576 bytes of codes and 72 of scales, of which 12 times 16,384 fit.
    layers, *head = content["windows"]
    assert head == [196608 * 648, 65536 * 648] and max(head) <= MOST_BYTES
    pool = 4 * max(program["words"] for program in content["programs"].values())
    planned = pool + layers + sum(head)
    parts = verb("plan", model, *SETTINGS)["breakdown"]["anonymous"]
    assert parts["programs"] == pytest.approx(pool / 1e6, abs=0.05)
    assert parts["windows of weights"] == pytest.approx((layers + sum(head)) / 1e6, abs=0.05)
    report = verb("parity", bundle, "--steps", 1)
    assert report["runner"] == "session (vulkan)" and report["passed"] is True
    assert report["max_relative_gradient_error"] <= 1e-5
    with Session.open(bundle) as session, Dataset() as examples:
        examples.add([(list(range(15)), list(range(1, 16)))], 0)
        session.step(examples, [0])
        assert planned <= session.info.device_bytes <= planned + 1_000_000
