"""What a session says of a bundle with stacked copies, float16 slots or a program `update` that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import split_bundles, stacked_bundles
from tests.support.split_bundles import SplitModel
from tests.support.stacked_bundles import SHIFT, VALUES, StackedModel
from tests.unit.session.test_split_manifest import (
    Change,
    Manifest,
    check_schema,
    program,
    rewrite,
    value,
    without,
)
from zoexport.core.errors import BundleError
from zoexport.session import Bundle, Session

LAYER = "layer.forward@8"


def add(manifest: Manifest, name: str, which: str, like: dict[str, Any], **changes: Any) -> None:
    program(manifest, name)[which].append({**like, **changes})


def epsilon(name: str) -> dict[str, Any]:
    return {"name": name, "role": name, "dtype": "float32", "shape": [1]}


def one_copy(manifest: Manifest) -> None:
    manifest["copies"] = 1
    manifest["step"]["copies"] = "one"


def refused(bundle: Path, change: Change, message: str) -> None:
    Session.open(bundle, engine=StackedModel()).close()
    rewrite(bundle, change)
    with pytest.raises(BundleError, match=message):
        Session.open(bundle, engine=StackedModel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(copies=2), "copies: found 2; expected 4, as step says"),
        (lambda m: m.update(copies=8), "copies: found 8"),
        (lambda m: m["step"]["levels"][0].update(directions=3), "copies: found 4"),
        (
            lambda m: m["step"]["levels"][0].update(directions=3, difference="forward"),
            "forward differences of copies that programs of layers make",
        ),
        (lambda m: m["step"].update(noise="rademacher"), r"step\.noise: found rademacher"),
        (lambda m: m.update(rows=6), "rows: found 6; expected a multiple of copies"),
        (lambda m: m.update(rows=4), r"the role tokens.*one of \(4, 4\)"),
        (one_copy, f"the trainable float16 slot {VALUES} with copies 1"),
        (
            lambda m: (one_copy(m), m["state"][0].update(role="frozen")),
            "the value epsilon with the role epsilon",
        ),
        (lambda m: m["state"][1].update(dtype="float16"), "the state shift"),
        (lambda m: m["state"][2].update(dtype="float32"), "the state bias"),
        (
            lambda m: m["state"][0].update(dtype="bfloat16"),
            "expected float32, float16, uint8, int8",
        ),
        (
            lambda m: value(m, LAYER, "inputs", "values").update(dtype="float32"),
            "the state values",
        ),
        (
            lambda m: without(m, LAYER, "inputs", "epsilon"),
            f"the trainable slot {SHIFT} without what perturbs it",
        ),
        (lambda m: without(m, LAYER, "inputs", "seed"), "without what perturbs it"),
        (lambda m: without(m, LAYER, "inputs", "step"), "expected the roles epsilon, and seed"),
        (
            lambda m: value(m, LAYER, "inputs", "epsilon").update(shape=[2]),
            "another dtype or a range of sizes of epsilon",
        ),
        (
            lambda m: value(m, LAYER, "inputs", "seed").update(dtype="float32"),
            "another dtype or a range of sizes of seed",
        ),
        (
            lambda m: value(m, LAYER, "inputs", "seed").update(role="query"),
            "the role query",
        ),
        (
            lambda m: add(m, "head.forward", "inputs", epsilon("epsilon")),
            "stage head, .*the value epsilon with the role epsilon",
        ),
        (
            lambda m: m["state"][2].update(role="trainable"),
            "a head that reads the trainable slot bias",
        ),
    ],
)
def test_bad_copies(tmp_path: Path, change: Change, message: str) -> None:
    refused(stacked_bundles.write_bundle(tmp_path / "bundle"), change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: without(m, LAYER, "inputs", f"noise.{VALUES}"),
            f"the trainable slot {SHIFT} without what perturbs it",
        ),
        (
            lambda m: value(m, LAYER, "inputs", f"noise.{VALUES}").update(name="noise.other"),
            "the input noise.other of another name",
        ),
        (
            lambda m: value(m, LAYER, "inputs", f"noise.{VALUES}").update(shape=[1, 9]),
            f"the input noise.{VALUES} of another name, dtype or shape",
        ),
        (
            lambda m: value(m, LAYER, "inputs", f"noise.{VALUES}").update(dtype="float16"),
            f"another dtype or a range of sizes of noise.{VALUES}",
        ),
        (
            lambda m: without(m, "update", "inputs", f"previous_noise.{SHIFT}"),
            "program update: found the inputs .*; expected .*previous_noise.shift",
        ),
        (
            lambda m: value(m, "update", "inputs", f"previous_noise.{SHIFT}").update(shape=[1, 6]),
            "the value previous_noise.shift with the role previous_noise",
        ),
        (
            lambda m: add(m, "update", "inputs", epsilon("epsilon")),
            "found the inputs epsilon, learning_rate",
        ),
    ],
)
def test_bad_noise(tmp_path: Path, change: Change, message: str) -> None:
    path = stacked_bundles.write_bundle(tmp_path / "bundle", noise_given=True, update_program=True)
    refused(path, change, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: without(m, "update", "inputs", VALUES),
            "program update: found the inputs .*expected .*sparse.values",
        ),
        (lambda m: without(m, "update", "inputs", "step"), "program update: found the inputs"),
        (lambda m: without(m, "update", "inputs", "rate"), "program update: found the inputs"),
        (
            lambda m: without(m, "update", "outputs", SHIFT),
            f"program update: found the outputs {VALUES}; expected {SHIFT}, {VALUES}",
        ),
        (
            lambda m: value(m, "update", "outputs", VALUES).update(dtype="float32"),
            f"the value {VALUES} with the role state",
        ),
        (
            lambda m: value(m, "update", "inputs", "gradients").update(shape=[3]),
            "the value gradients with the role projected_gradients",
        ),
        (
            lambda m: value(m, "update", "inputs", "rate").update(shape=[2]),
            "the value rate with the role learning_rate",
        ),
        (
            lambda m: value(m, "update", "inputs", "rate").update(role="weight"),
            "the value rate with the role weight",
        ),
        (
            lambda m: add(m, "update", "inputs", m["state"][2], role="state"),
            "found the inputs bias, ",
        ),
    ],
)
def test_bad_updates(tmp_path: Path, change: Change, message: str) -> None:
    path = stacked_bundles.write_bundle(tmp_path / "bundle", update_program=True)
    refused(path, change, message)


def test_what_the_session_perturbs_is_float32(tmp_path: Path) -> None:
    path = split_bundles.write_bundle(tmp_path / "bundle", method="prge")

    def half(manifest: Manifest) -> None:
        manifest["state"][0].update(dtype="float16")

    Session.open(path, engine=SplitModel()).close()
    rewrite(path, half)
    with pytest.raises(BundleError, match=r"the trainable float16 slot lora_A\.0 with"):
        Session.open(path, engine=SplitModel())


def test_the_schema_knows_a_slots_dtypes(tmp_path: Path) -> None:
    path = stacked_bundles.write_bundle(tmp_path / "bundle", update_program=True)
    assert [slot["dtype"] for slot in Bundle.open(path).manifest["state"]] == [
        "float16",
        "float32",
        "float16",
    ]
    rewrite(path, lambda m: m["state"][0].update(dtype="bfloat16"))
    with pytest.raises(BundleError, match="at state/0/dtype: 'bfloat16' is not one of"):
        check_schema(path)


def test_the_schema_leaves_update_without_a_family(tmp_path: Path) -> None:
    path = stacked_bundles.write_bundle(tmp_path / "bundle", update_program=True)
    rewrite(path, lambda m: program(m, "update").update(family="update"))
    with pytest.raises(BundleError, match="programs/"):
        check_schema(path)


def test_the_schema_wants_a_plan_or_queries_without_an_optimizer(tmp_path: Path) -> None:
    path = stacked_bundles.write_bundle(tmp_path / "bundle")
    rewrite(path, lambda m: m["settings"].pop("num_queries"))
    assert Bundle.open(path).manifest["step"]["copies"] == "call"
    rewrite(path, lambda m: m.pop("step"))
    with pytest.raises(BundleError, match="'num_queries' is a required property"):
        check_schema(path)
