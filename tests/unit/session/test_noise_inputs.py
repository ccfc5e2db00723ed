"""Whole programs that take noise, weights and rows of certain lengths as inputs, in the session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from tests.support import bundles
from tests.support.bundles import SLOT, TENSOR_ID, LinearModel
from tests.support.sessions import make_dataset
from zoexport.core import manifest as manifests
from zoexport.core import rng
from zoexport.core.errors import BundleError
from zoexport.session import Session, Tensor

SHAPE = (bundles.RANK, bundles.VOCAB)
WEIGHTS = {
    "codes": torch.arange(6, dtype=torch.int64).view(2, 3).to(torch.uint32),
    "scales": torch.tensor([[1.5], [-2.0]], dtype=torch.bfloat16),
    "halves": torch.tensor([0.1, -65504.0], dtype=torch.float16),
    "columns": torch.tensor([5, -1, 2**31 - 1], dtype=torch.int32),
}


class GivenNoise(LinearModel):
    """The same model, which is given noise: it looks up whose it is, and goes on as from seed, step and query."""

    def __init__(self, queries: int) -> None:
        super().__init__()
        self.queries = queries
        self.step = 0
        self.given: list[tuple[str, dict[str, Any]]] = []

    def __call__(
        self, program: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
    ) -> None:
        arrays = {
            name: np.array(tensor.data).reshape(tensor.shape) for name, tensor in inputs.items()
        }
        self.given.append((program, arrays))
        known = {name: tensor for name, tensor in inputs.items() if name not in WEIGHTS}
        if program == "train":
            given = arrays[f"noise.{SLOT}"]
            all_of_step = noise(self.step, self.queries)
            scalars = {"seed": 7, "step": self.step}
            if "sign" in inputs:
                (query,) = (q for q in range(self.queries) if (all_of_step[q] == given[0]).all())
                scalars["query"] = query
            else:
                np.testing.assert_array_equal(given, all_of_step)
            pending = arrays["projected_gradients"].any()
            before = noise(self.step - 1, self.queries) if pending else np.zeros_like(all_of_step)
            np.testing.assert_array_equal(arrays[f"previous_noise.{SLOT}"], before)
            known |= {
                name: Tensor(name, (1,), memoryview(np.array([value], np.int64)))
                for name, value in scalars.items()
            }
        super().__call__(program, known, outputs)


def noise(step: int, queries: int) -> NDArray[np.float32]:
    made = [rng.normals(7, TENSOR_ID, query, step, SHAPE[0] * SHAPE[1]) for query in range(queries)]
    return np.stack(made).reshape(queries, *SHAPE)


def write(folder: Path, *, method: str = "prge", num_queries: int = 2, **changes: Any) -> Path:
    """A bundle whose train program takes noise; both programs take weights, and rows of 4 or 8 tokens."""
    bundles.write_bundle(folder, method=method, num_queries=num_queries)
    save_file(WEIGHTS, folder / "weights.safetensors")
    content = json.loads((folder / manifests.FILE).read_text("utf-8"))
    content |= {"weights": {"file": "weights.safetensors"}, "lengths": [4, 8]}
    weights = [
        {
            "name": name,
            "role": "weight",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
        }
        for name, tensor in WEIGHTS.items()
    ]
    for program in content["programs"]:
        kept = [v for v in program["inputs"] if v["role"] not in ("seed", "step", "query")]
        kept[0]["shape"][1] = {"name": "length", "min": 4, "max": 8}
        program["inputs"] = [*kept, *weights]
    copies = num_queries if method == "prge" else 1
    content["programs"][0]["inputs"] += [
        {
            "name": f"{role}.{SLOT}",
            "role": role,
            "dtype": "float32",
            "shape": [num_queries if role == "previous_noise" else copies, *SHAPE],
        }
        for role in ("noise", "previous_noise")
    ]
    files = [folder / name for name in (*content.pop("files"), "weights.safetensors")]
    for key in ("schema_version", "bundle_id"):
        del content[key]
    manifests.write(folder, content, files)
    return folder


def run(bundle: Path, model: LinearModel, steps: int = 4) -> tuple[list[list[float]], bytes, float]:
    """The losses of each step, the slot, and the loss of an evaluation."""
    with Session.open(bundle, engine=model) as session, _data() as data:
        losses = []
        for step in range(steps):
            if isinstance(model, GivenNoise):
                model.step = step
            losses.append(list(session.step(data, [0, 1, 2]).losses))
        return losses, bytes(session.read_slot(SLOT)), session.evaluate(data).loss


def _data() -> Any:
    return make_dataset(bundles.text_examples())


@pytest.mark.parametrize("method", ["prge", "mezo"])
@pytest.mark.parametrize("queries", [1, 3])
def test_given_noise_is_the_noise_of_seed_and_step(
    tmp_path: Path, method: str, queries: int
) -> None:
    made = bundles.write_bundle(tmp_path / "made", method=method, num_queries=queries)
    given = write(tmp_path / "given", method=method, num_queries=queries)
    assert run(given, GivenNoise(queries)) == run(made, LinearModel())


def test_weights_arrive_as_they_are_in_the_file(tmp_path: Path) -> None:
    model = GivenNoise(2)
    run(write(tmp_path / "bundle"), model, steps=1)
    assert {program for program, _ in model.given} == {"train", "evaluate"}
    for _, arrays in model.given:
        for name, tensor in WEIGHTS.items():
            bits = tensor.view(torch.uint16) if tensor.is_floating_point() else tensor
            np.testing.assert_array_equal(arrays[name], bits.numpy())


def test_rows_have_the_smallest_length_that_fits(tmp_path: Path) -> None:
    model = GivenNoise(2)
    examples = [([(list(range(n)), list(range(n)))], 0) for n in (2, 4, 5, 8)]
    with Session.open(write(tmp_path / "bundle"), engine=model) as session:
        for example in examples:
            with make_dataset([example]) as data:
                session.evaluate(data)
    lengths = [arrays["tokens"].shape[1] for _, arrays in model.given]
    assert lengths == [4, 4, 8, 8]


def _input(manifest: dict[str, Any], role: str) -> dict[str, Any]:
    found: dict[str, Any] = next(v for v in manifest["programs"][0]["inputs"] if v["role"] == role)
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: _input(m, "noise").update(name="noise.other"), "noise.other.*noise.SLOT"),
        (lambda m: _input(m, "noise").update(name=SLOT), "another name"),
        (lambda m: _input(m, "noise").update(shape=[2, 3, 4]), "queries, "),
        (lambda m: _input(m, "previous_noise").update(shape=[1, *SHAPE]), "queries, "),
        (lambda m: _input(m, "noise").update(dtype="int64"), "another dtype"),
        (lambda m: _input(m, "previous_noise").update(role="epsilon"), "epsilon|previous_noise"),
        (lambda m: m.update(lengths=[4, 7]), "lengths"),
        (lambda m: m.update(lengths=[2, 8]), "lengths"),
        (lambda m: m["weights"].update(file="none"), "weights"),
        (lambda m: m.pop("weights"), "role weight"),
        (lambda m: _input(m, "weight").update(name="other"), "no tensor other"),
        (lambda m: _input(m, "weight").update(shape=[3, 2]), "another dtype, shape"),
        (lambda m: _input(m, "weight").update(dtype="float32"), "another dtype, shape"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    bundle = write(tmp_path / "bundle")
    path = bundle / manifests.FILE
    content = json.loads(path.read_text("utf-8"))
    change(content)
    content["bundle_id"] = manifests.bundle_id(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BundleError, match=message):
        run(bundle, GivenNoise(2), steps=1)
