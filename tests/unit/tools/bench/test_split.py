"""First-order and split variants of the benchmark: matrix, ratios, calls and pages, on made-up samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.benchmarks import CONDITIONS
from tests.support.bundles import write_bundle
from zoexport.tools.bench import matrix, output, summary
from zoexport.tools.bench.matrix import AUTOGRAD, EAGER, Axes, Shape, Variant
from zoexport.tools.bench.runner import Sample, sample

SHAPE = Shape(256, 1, 1, targets="all-linear")
MEBP = Variant("mebp", "int4", SHAPE)
MEZO = Variant("mezo", "int4", SHAPE)
BASELINE = Variant(AUTOGRAD, "fp32", SHAPE)

# The matrix.


def test_the_mebp_matrix() -> None:
    found = matrix.variants(matrix.preset("mebp"), {})
    assert {variant.shape.max_length for variant in found} == {128, 256, 512, 1024, 2048}
    of_256 = [variant for variant in found if variant.shape.max_length == 256]
    kept = [
        dataclasses.replace(MEBP, activation_cache_mb=activation_cache_mb)
        for activation_cache_mb in (0, 2000)
    ]
    assert of_256 == [*kept, MEZO, BASELINE]
    assert str(kept[1]).endswith("lora.target_modules all-linear, activation_cache_mb 2000")
    assert kept[1].settings()["activation_cache_mb"] == "2000"
    assert str(MEZO).endswith("lora.target_modules all-linear")


def test_settings_are_those_that_the_method_has() -> None:
    assert MEBP.settings() == {
        "max_length": "256",
        "batch_size": "1",
        "weights": "int4",
        "lora.layers_to_transform": "all",
        "lora.target_modules": "all-linear",
    }
    assert MEZO.settings() == {**MEBP.settings(), "num_queries": "1"}


def test_a_first_order_method_has_no_queries_and_its_own_baseline() -> None:
    axes = Axes(methods=("mebp",), num_queries=(1, 2), rows=4, labels=("all",))
    found = matrix.variants([axes], {})
    shapes = [Shape(64, batch, 1) for batch in (4, 2)]
    assert found == [
        variant
        for shape in shapes
        for variant in (
            Variant("mebp", "int4", shape),
            Variant(AUTOGRAD, "fp32", shape),
        )
    ]
    both = matrix.variants([Axes(methods=("prge",), labels=("all",))], {})
    assert [variant.method for variant in both] == ["prge", EAGER]


# Ratios.


def taken(seconds: float, anonymous: float, peak: float) -> Sample:
    return Sample([seconds] * 3, {"forward": seconds}, None, peak, anonymous)


def test_a_first_order_step_over_the_others() -> None:
    times = [(1.2, 1.0, 2.0), (1.5, 1.0, 2.0), (14.0, 10.0, 20.0)]
    rounds = [
        {
            str(MEBP): taken(mebp, 30.0 + number, 200.0),
            str(MEZO): taken(mezo, 40.0, 100.0),
            str(BASELINE): taken(autograd, 1000.0, 2000.0),
        }
        for number, (mebp, mezo, autograd) in enumerate(times)
    ]
    found = {entry["kind"]: entry for entry in summary.ratios([MEBP, MEZO, BASELINE], rounds)}
    assert {kind: entry["ratio"] for kind, entry in found.items()} == {
        "step over mezo": 1.4,
        "anonymous MB over mezo": 0.8,
        "peak MB over mezo": 2.0,
        "step over autograd": 0.7,
        "anonymous MB over autograd": 0.032,
        "peak MB over autograd": 0.1,
    }
    step = found["step over mezo"]
    assert (step["ratio_least"], step["ratio_most"], step["ratio_of_fastest"]) == (1.2, 1.5, 1.2)
    assert {entry["of"] for entry in found.values()} == {str(MEBP)}


def test_a_zeroth_order_step_is_not_compared_with_autograd() -> None:
    rounds = [{str(MEZO): taken(1.0, 1.0, 1.0), str(BASELINE): taken(1.0, 1.0, 1.0)}]
    assert summary.ratios([MEZO, BASELINE], rounds) == []


# Calls.


def test_calls_of_a_step_leave_the_warm_up_out() -> None:
    def line(calls: int) -> dict[str, Any]:
        cost = {"calls": calls, "seconds": calls * 0.5, "load_seconds": 0.0}
        return {"seconds": 20.0, "programs": {"layer.0@256": cost}}

    lines = [line(30), line(60), line(90)]
    result = {**lines[-1], "open_seconds": 0.0, "peak_rss_mb": None, "peak_anonymous_mb": None}
    assert sample(lines, result, warmup=1).calls == {"layer.0@256": 30.0}
    assert sample(lines, result, warmup=0).calls == {"layer.0@256": 30.0}


# What is shown.


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    bundle = write_bundle(tmp_path / "bundle")
    rounds = [{str(one): taken(1.0, 2.0, 3.0) for one in (MEBP, MEZO, BASELINE)}]
    entries = summary.results([MEBP, MEZO, BASELINE], rounds, {MEBP: bundle, MEZO: bundle})
    return {
        "results": entries,
        "ratios": summary.ratios([MEBP, MEZO, BASELINE], rounds),
        "conditions": {
            **CONDITIONS,
            "baselines": ["autograd: so"],
            "memory": "memory: so",
        },
    }


def test_split_variants_are_shown_with_their_settings(
    result: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    # A method without a color of its own.
    result["results"][0] |= {"method": "senszoq", "activation_cache_mb": 64}
    output.write(tmp_path, result)
    assert json.loads((tmp_path / output.JSON).read_text()) == result
    text = (tmp_path / output.MARKDOWN).read_text()
    assert "| mezo | int4/" in text and "| senszoq, activation_cache_mb 64 | int4/" in text
    assert "- autograd: so\n- memory: so\n" in text
    assert "step over mezo" in "\n".join(output.lines(result))


def test_every_method_has_a_color() -> None:
    assert len({*output.COLORS.values(), "tab:purple"}) == len(output.COLORS) + 1


def test_variants_of_given_split_bundles() -> None:
    manifest = {
        "method": "mebp",
        "settings": {
            "max_length": 32,
            "batch_size": 2,
            "weights": "int8",
            "lora.layers_to_transform": "all",
            "lora.target_modules": "all-linear",
        },
    }
    found = matrix.of_bundle(Path("b"), manifest, ["all"], True)
    shape = Shape(32, 2, 1, targets="all-linear")
    assert found == [
        Variant("mebp", "int8", shape, Path("b")),
        Variant(AUTOGRAD, "fp32", shape, Path("b")),
    ]
    zeroth = {**manifest, "method": "mezo", "settings": {**manifest["settings"], "num_queries": 4}}
    assert matrix.of_bundle(Path("b"), zeroth, ["all"], True)[1] == dataclasses.replace(
        found[1], method=EAGER, shape=dataclasses.replace(shape, num_queries=4)
    )
