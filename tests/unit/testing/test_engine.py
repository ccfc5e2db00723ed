"""A session whose programs are functions of a Core ML package, run by the evaluator."""

from __future__ import annotations

import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import bundles
from tests.support.bundles import FROZEN, HIDDEN, RANK, SLOT, VOCAB, LinearModel
from tests.support.coreml_packages import FP16, FP32, INT32, mb, save
from tests.support.sessions import make_dataset
from zoexport.core import manifest as manifests
from zoexport.core.coreml_names import feature_name, result_name
from zoexport.core.errors import BundleError
from zoexport.session import Bundle, Session, Tensor
from zoexport.testing import PackageEngine

ROWS, LENGTH, ENTRIES = 2, 8, 10
MODEL = LinearModel()
B, A = feature_name(SLOT), feature_name(FROZEN)


def evaluate(given: Mapping[str, Any]) -> dict[str, Any]:
    """The program ``evaluate`` of :class:`LinearModel`."""
    embedded = mb.gather(x=MODEL.embedding.astype(np.float32), indices=given["tokens"], axis=0)
    lengths = np.arange(1, LENGTH + 1, dtype=np.float32)[:, None]
    hidden = mb.real_div(x=mb.cumsum(x=embedded, axis=1), y=lengths)
    frozen = mb.matmul(x=hidden, y=MODEL.output.astype(np.float32))
    adapter = mb.matmul(x=mb.matmul(x=hidden, y=given[A]), y=given[B])
    logits = mb.reshape(x=mb.add(x=frozen, y=adapter), shape=[ROWS * LENGTH, VOCAB])
    total = mb.reduce_log_sum_exp(x=logits, axes=[-1], keep_dims=True)
    picked = mb.gather(x=mb.sub(x=logits, y=total), indices=given["label_positions"], axis=0)
    labels = given["label_tokens"]
    found = mb.gather_along_axis(x=picked, indices=mb.expand_dims(x=labels, axes=[1]), axis=1)
    most = mb.equal(x=mb.reduce_argmax(x=picked, axis=-1, keep_dims=False), y=labels)
    return {
        result_name("logprobs"): mb.reshape(x=found, shape=[1, ENTRIES]),
        result_name("is_argmax"): mb.expand_dims(x=mb.cast(x=most, dtype="fp32"), axes=[0]),
    }


SPECIFICATION = "model.mlpackage/Data/com.apple.CoreML/model.mlmodel"


def write_bundle(folder: Path, file: str) -> Path:
    """A bundle whose program ``evaluate`` is a function of a package, named by ``file``."""
    bundle = bundles.write_bundle(folder, min_labels=ENTRIES)
    specs = {
        "tokens": ((ROWS, LENGTH), INT32),
        "label_positions": ((ENTRIES,), INT32),
        "label_tokens": ((ENTRIES,), INT32),
        B: ((RANK, VOCAB), FP32),
        A: ((HIDDEN, RANK), FP32),
    }
    save(bundle / "model.mlpackage", {"scores": (specs, evaluate)})
    content = Bundle.open(bundle).manifest
    for program in content["programs"]:
        if program["name"] == "evaluate":
            program.update(file=file, entry_point="scores")
    listed = [bundle / name for name in content.pop("files")]
    files = [path for path in (bundle / "model.mlpackage").rglob("*") if path.is_file()]
    del content["bundle_id"]
    manifests.write(bundle, content, [*listed, *files])
    return bundle


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("coreml") / "bundle", SPECIFICATION)


def test_a_session_evaluates_with_the_functions_of_a_package(packaged: Path) -> None:
    examples = bundles.text_examples()
    with (
        Session.open(packaged, engine=PackageEngine(Bundle.open(packaged))) as session,
        make_dataset(examples) as dataset,
    ):
        found = session.evaluate(dataset)
    expected = bundles.evaluate(MODEL, examples, bundles.initial_values()[SLOT])
    assert found.loss == pytest.approx(expected["loss"], rel=1e-5)
    assert found.token_accuracy == expected["token_accuracy"]


def tensor(name: str, values: Any, shape: tuple[int, ...], kind: str) -> Tensor:
    return Tensor(name, shape, memoryview(array.array(kind, values)))


def program_inputs(**changes: Tensor) -> dict[str, Tensor]:
    given = {
        "tokens": tensor("tokens", [1] * ROWS * LENGTH, (ROWS, LENGTH), "q"),
        "label_positions": tensor("label_positions", [0] * ENTRIES, (ENTRIES,), "q"),
        "label_tokens": tensor("label_tokens", [0] * ENTRIES, (ENTRIES,), "q"),
        SLOT: tensor(SLOT, [0.0] * RANK * VOCAB, (RANK, VOCAB), "f"),
        FROZEN: tensor(FROZEN, [0.0] * HIDDEN * RANK, (HIDDEN, RANK), "f"),
    }
    return {**given, **changes}


def test_only_the_outputs_that_a_session_asks_for_are_filled(packaged: Path) -> None:
    wanted = tensor("logprobs", [0.0] * ENTRIES, (1, ENTRIES), "f")
    PackageEngine(Bundle.open(packaged))("evaluate", program_inputs(), {"logprobs": wanted})
    assert max(wanted.data) < 0


def test_a_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", "model.bin")
    with pytest.raises(BundleError, match=r"model.bin: found no such folder"):
        PackageEngine(Bundle.open(bundle))("evaluate", program_inputs(), {})


LARGE = tensor("tokens", [2**31] * ROWS * LENGTH, (ROWS, LENGTH), "q")
FLOATS = tensor("tokens", [1.0] * ROWS * LENGTH, (ROWS, LENGTH), "f")
SHORT = tensor("tokens", [1] * ROWS, (ROWS, 1), "q")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": LARGE}, r"input 'tokens': found numbers from 2147483648 .* 32 bits"),
        ({"tokens": FLOATS}, r"input 'tokens': found float32 \(2, 8\); expected int32"),
        ({"tokens": SHORT}, r"input 'tokens': found int32 \(2, 1\); expected int32 \(2, 8\)"),
        ({"epsilon": SHORT}, "found no input 'epsilon'"),
        ({"lora_B_proj": FLOATS}, "values of one name in the package"),
    ],
)
def test_values_that_the_function_does_not_take_are_refused(
    packaged: Path, changes: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        PackageEngine(Bundle.open(packaged))("evaluate", program_inputs(**changes), {})


def test_an_output_of_another_shape_is_refused(packaged: Path) -> None:
    wanted = tensor("logprobs", [0.0], (1, 1), "f")
    with pytest.raises(BundleError, match=r"output 'out_logprobs': found float32 \(1, 10\)"):
        PackageEngine(Bundle.open(packaged))("evaluate", program_inputs(), {"logprobs": wanted})


@pytest.mark.parametrize("kind", [FP16, FP32], ids=["fp16", "fp32"])
def test_slots_of_fp16_pass_by_their_bits(tmp_path: Path, kind: Any) -> None:
    """What a function takes as fp32 is refused: the bits are no numbers."""
    bundle = bundles.write_bundle(tmp_path / "bundle", min_labels=ENTRIES)
    specs = {"slot": ((3,), kind)}
    doubled = {
        "scores": (specs, lambda given: {"out_slot": mb.add(x=given["slot"], y=given["slot"])})
    }
    save(bundle / "model.mlpackage", doubled)
    content = Bundle.open(bundle).manifest
    program = next(one for one in content["programs"] if one["name"] == "evaluate")
    program.update(file=SPECIFICATION, entry_point="scores")
    del content["bundle_id"]
    listed = [bundle / name for name in content.pop("files")]
    listed += [path for path in (bundle / "model.mlpackage").rglob("*") if path.is_file()]
    manifests.write(bundle, content, listed)
    values = np.array([1.5, -2e-7, 6e4], np.float16)
    slot = tensor("slot", values.view(np.uint16), (3,), "H")
    doubles = tensor("slot", [0, 0, 0], (3,), "H")
    engine = PackageEngine(Bundle.open(bundle))
    if kind == FP32:
        with pytest.raises(BundleError, match=r"input 'slot': found uint16 \(3\,\); expected fp32"):
            engine("evaluate", {"slot": slot}, {"slot": doubles})
        return
    engine("evaluate", {"slot": slot}, {"slot": doubles})
    found = np.asarray(doubles.data).view(np.float16)
    np.testing.assert_array_equal(found[:2], 2 * values[:2])
    assert np.isinf(found[2])


def test_a_program_that_is_none_of_the_bundle_is_refused(packaged: Path) -> None:
    with pytest.raises(BundleError, match=r"no program 'evaluated'.*Did you mean 'evaluate'"):
        PackageEngine(Bundle.open(packaged))("evaluated", {}, {})
