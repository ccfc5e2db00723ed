"""What a session says of a bundle that trains integers and is not as docs/formats.md has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import grid_bundles, stacked_bundles
from tests.support.grid_bundles import BIAS, GridModel
from tests.support.grid_integers import TABLE
from tests.support.stacked_bundles import StackedModel
from tests.unit.session.test_split_manifest import (
    Change,
    Manifest,
    check_schema,
    program,
    rewrite,
    value,
)
from zoexport.core.errors import BundleError
from zoexport.session import Bundle, Session

LAYER = "int4.forward@8"


def slot(manifest: Manifest, name: str) -> dict[str, Any]:
    return next(s for s in manifest["state"] if s["name"] == name)


def table(**changes: Any) -> Change:
    return lambda m: slot(m, TABLE).update(changes)


def add_noise(manifest: Manifest) -> None:
    noise = {"name": "noise.codes.0", "role": "noise", "dtype": "float32", "shape": [2, 8, 4]}
    program(manifest, LAYER)["inputs"].append(noise)


def add_update(manifest: Manifest) -> None:
    manifest["programs"].append({**manifest["programs"][0], "name": "update", "family": ""})


def first_order(manifest: Manifest) -> None:
    manifest["settings"]["optimizer"] = "sgd"
    del manifest["step"]
    del manifest["settings"]["num_queries"]


def whole(manifest: Manifest) -> None:
    for key in ("stages", "lengths", "label_rows"):
        del manifest[key]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m.pop("grid"),
            r"grid: found nothing, and the trainable uint8 slot codes\.0; expected the table",
        ),
        (
            lambda m: [slot(m, f"codes.{n}").update(role="frozen") for n in range(3)],
            "grid: found a grid without a trainable slot of uint8 or int8",
        ),
        (
            lambda m: slot(m, BIAS).update(role="trainable"),
            "state: found the trainable float32 slot bias in a bundle with grid",
        ),
        (
            first_order,
            "copies: found 4; expected 1",
        ),
        (
            lambda m: (first_order(m), m.update(copies=1)),
            "settings.optimizer: found sgd without queries in a bundle with grid; expected settings",
        ),
        (
            lambda m: (m.update(copies=1), m["step"].update(copies="one")),
            "copies: found 1 in a bundle with grid; expected stages",
        ),
        (
            whole,
            r"stages: found nothing, but grid; expected stages, with 2 \* settings.num_queries",
        ),
        (lambda m: m["grid"].update(table="none"), "grid.table: found none; expected a frozen"),
        (lambda m: m["grid"].update(table=BIAS), "grid.table: found bias"),
        (table(role="optimizer"), "grid.table: found quzo.table; expected a frozen int32"),
        (table(shape=[4, 2]), "grid.table"),
        (table(shape=[24, 2]), "grid.table"),
        (table(shape=[2048, 2]), "grid.table"),
        (table(shape=[64]), "grid.table"),
        (table(dtype="uint8"), "grid.table"),
        (table(role="trainable"), r"state\[3\]\.dtype: found \"int32\"; expected .*int32 where it"),
        (table(dtype="int64"), r"state\[3\]\.dtype"),
        (table(tensor_id=2**31 - 1), "the int32 slot quzo.table with the tensor_id 2147483647"),
        (lambda m: slot(m, "codes.0").update(shape=[32]), r"the uint8 slot codes\.0 of another"),
        (lambda m: slot(m, "codes.0").update(dtype="int8"), "the state codes"),
        (
            lambda m: m["grid"].update(eps=0.5),
            r"settings.eps: found 0\.75.*expected grid.eps = 0\.5",
        ),
        (lambda m: m["settings"].update(eps=0.5), r"settings.eps: found 0\.5"),
        (lambda m: m["grid"].update(eps=0), r"grid\.eps: .*expected a number above 0"),
        (lambda m: m["grid"].update(eps=-0.75), r"grid\.eps"),
        (
            lambda m: m["grid"].update(estimator="q-rge3"),
            r"grid\.estimator: .*q-rge1 or q-rge2, with -summed",
        ),
        (lambda m: m["grid"].pop("table"), r"grid\.table"),
        (add_update, "program update: found one in a bundle with grid"),
        (add_noise, r"the input noise\.codes\.0 of another name, dtype or shape"),
        (
            lambda m: value(m, LAYER, "inputs", "epsilon").update(role="weight"),
            "no tensor bound to the weight epsilon",
        ),
    ],
)
def test_bad_grids(tmp_path: Path, change: Change, message: str) -> None:
    bundle = grid_bundles.write_bundle(tmp_path / "bundle")
    rewrite(bundle, change)
    with pytest.raises(BundleError, match=message):
        Session.open(bundle, engine=GridModel())


def test_a_grid_is_not_for_floats(tmp_path: Path) -> None:
    bundle = stacked_bundles.write_bundle(tmp_path / "bundle")
    grid = {"table": "bias", "eps": 0.02, "estimator": "q-rge2"}
    rewrite(bundle, lambda m: m.update(grid=grid))
    with pytest.raises(BundleError, match="a grid without a trainable slot of uint8 or int8"):
        Session.open(bundle, engine=StackedModel())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["grid"].update(estimator="q-rge3"), "at grid/estimator: 'q-rge3' is not one"),
        (lambda m: m["grid"].update(bits=3), "at grid: .*'bits' was unexpected"),
        (lambda m: m["grid"].pop("eps"), "'eps' is a required property"),
        (lambda m: m["grid"].update(eps=0), "at grid/eps"),
        (lambda m: m.pop("stages"), "'stages' is a dependency of 'grid'"),
    ],
)
def test_the_schema_knows_grids(tmp_path: Path, change: Change, message: str) -> None:
    bundle = grid_bundles.write_bundle(tmp_path / "bundle")
    assert Bundle.open(bundle).manifest["grid"]["estimator"] == "q-rge2"
    rewrite(bundle, change)
    with pytest.raises(BundleError, match=message):
        check_schema(bundle)
