"""First-order and split variants of the benchmark: matrix, ratios, programs, products and pages, on made-up samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import write_bundle
from zoexport.bench import kernels, matrix, output, programs, sections, shaders, summary
from zoexport.bench.kernel_process import OURS, PLAIN, TORCH, XNNPACK
from zoexport.bench.matrix import AUTOGRAD, EAGER, Axes, Shape, Variant
from zoexport.bench.products import Content, Product, flops_of_attention, product_of
from zoexport.bench.runner import Sample, sample

SHAPE = Shape(256, 1, 1, targets="all-linear")
MEBP = Variant("mebp", "int4", SHAPE, split="layers")
MEZO = Variant("mezo", "int4", SHAPE, split="layers")
BASELINE = Variant(AUTOGRAD, "fp32", SHAPE)
LINEAR = Product("linear_int4", 1, 256, 576, 1536, 32)
BACK = Product("linear_int4_input_gradient", 1, 256, 1536, 576, 32)


# The matrix.


def test_the_mebp_matrix() -> None:
    found = matrix.variants(matrix.preset("mebp"), {})
    assert {variant.shape.seq_len for variant in found} == {128, 256, 512, 1024, 2048}
    of_256 = [variant for variant in found if variant.shape.seq_len == 256]
    kept = [dataclasses.replace(MEBP, keep_mb=keep_mb) for keep_mb in (0, 2000)]
    assert of_256 == [*kept, MEZO, BASELINE]
    assert str(kept[1]).endswith("lora.targets all-linear, split layers, keep_mb 2000")
    assert kept[1].settings()["keep_mb"] == "2000"
    assert str(MEZO).endswith("lora.targets all-linear, split layers")


def test_settings_are_those_that_the_method_has() -> None:
    assert MEBP.settings() == {
        "seq_len": "256",
        "batch": "1",
        "weights": "int4",
        "lora.layers": "all",
        "lora.targets": "all-linear",
    }
    assert MEZO.settings() == {**MEBP.settings(), "queries": "1", "split": "layers"}


def test_a_first_order_method_has_no_queries_and_its_own_baseline() -> None:
    axes = Axes(methods=("mebp",), queries=(1, 2), rows=4, labels=("all",))
    found = matrix.variants([axes], {})
    shapes = [Shape(64, batch, 1) for batch in (4, 2)]
    assert found == [
        variant
        for shape in shapes
        for variant in (
            Variant("mebp", "int4", shape, split="layers"),
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


# Programs and products.


def test_calls_of_a_step_leave_the_warm_up_out() -> None:
    def line(calls: int) -> dict[str, Any]:
        cost = {"calls": calls, "seconds": calls * 0.5, "load_seconds": 0.0}
        return {"seconds": 20.0, "programs": {"layer.0@256": cost}, "kernels": {}}

    lines = [line(30), line(60), line(90)]
    result = {**lines[-1], "open_seconds": 0.0, "peak_rss_mb": None, "peak_anonymous_mb": None}
    assert sample(lines, result, warmup=1).calls == {"layer.0@256": 30.0}
    assert sample(lines, result, warmup=0).calls == {"layer.0@256": 30.0}


@pytest.mark.parametrize(
    ("operator", "arguments", "expected"),
    [
        ("zoexport::linear_int4", [(1, 256, 576), (1536, 288), (1536, 18), None], LINEAR),
        ("zoexport::linear_int4_input_gradient", [(1, 256, 1536), (1536, 288), (1536, 18)], BACK),
        (
            "zoexport::linear_int8",
            [(2, 9, 64), (70, 64), (70,), None],
            Product("linear_int8", 1, 18, 64, 70),
        ),
        (
            "zoexport::matmul",
            [(9, 256, 64), (9, 256, 32), True, False],
            Product("matmul", 9, 64, 256, 32),
        ),
        (
            "zoexport::matmul",
            [(256, 16), (48, 16), False, True],
            Product("matmul", 1, 256, 16, 48),
        ),
        (
            "zoexport::add_matmul",
            [(256, 48), (16, 256), (16, 48), True, False],
            Product("add_matmul", 1, 256, 16, 48),
        ),
        ("zoexport::rows_1", [(1, 2)], None),
        ("aten::view_copy", [(1, 2), None], None),
    ],
)
def test_products_of_operators(operator: str, arguments: list[Any], expected: object) -> None:
    assert product_of(operator, arguments) == expected


def test_attention_counts_what_queries_see() -> None:
    q, k, v = (1, 4, 6, 8), (1, 4, 2, 8), (1, 4, 2, 5)
    results = [(1, 4, 6, 5), (1, 6, 4)]
    forward = [q, k, v, None, None, True, 0, *results, None]
    assert flops_of_attention("zoexport::attention", forward) == 2 * 6 * (4 * 5 // 2) * (8 + 5)
    backward = [q, k, v, None, *results, results[0], None, False, 0, q, k, v, None]
    assert flops_of_attention("zoexport::attention_gradient", backward) == 2 * 6 * 16 * (
        3 * 8 + 2 * 5
    )
    assert flops_of_attention("zoexport::matmul", [(2, 3), (3, 4), False, False]) == 0
    assert Content({LINEAR: 2}, 0, 7).flops == 2 * LINEAR.flops + 7


def test_a_program_without_a_family_goes_forward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = {
        "stages": [{"forward": "layer.0", "backward": None}, {"forward": "head", "backward": None}],
        "programs": [
            {"name": "layer.0@16", "family": "layer.0"},
            {"name": "layer.0@64", "family": "layer.0"},
            {"name": "update"},
        ],
    }
    monkeypatch.setattr(programs.manifests, "read", lambda _: manifest)
    content = {name: Content({LINEAR: 1}, 4_000_000) for name in ("layer.0@16", "update")}
    monkeypatch.setattr(programs, "contents", lambda _: content)
    parts = {"layer.0@16": 6.0, "layer.0@64": 0.0, "update": 0.5}
    calls = {"layer.0@16": 3.0, "layer.0@64": 0.0, "update": 1.0}
    run = Sample([6.5], parts, None, None, None, calls)
    layer, update = programs.of_variant(tmp_path, [run])
    assert (layer["name"], layer["family"], layer["call_seconds"]) == ("layer.0@16", "layer.0", 2.0)
    assert (update["name"], update["family"], update["calls"]) == ("update", None, 1.0)
    assert (layer["direction"], update["direction"]) == ("forward", "forward")
    assert update["planned_mb"] == 4.0


def test_a_program_of_a_backward_family_goes_backward(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = {
        "stages": [{"forward": "layer.0", "backward": "layer.0.backward"}],
        "programs": [{"name": "layer.0.backward@64", "family": "layer.0.backward"}],
    }
    monkeypatch.setattr(programs.manifests, "read", lambda _: manifest)
    monkeypatch.setattr(programs, "contents", lambda _: {"layer.0.backward@64": Content({}, 0)})
    times_of_it = {"layer.0.backward@64": 1.0}
    run = Sample([1.0], times_of_it, None, None, None, times_of_it)
    assert programs.of_variant(tmp_path, [run])[0]["direction"] == "backward"


def test_the_share_of_unpacking() -> None:
    content = {"f": Content({LINEAR: 2}, 0), "b": Content({LINEAR: 1, BACK: 3}, 0)}
    entry = {
        "name": "mebp",
        "step_seconds": 10.0,
        "programs": [
            {"name": "f", "direction": "forward", "calls": 5.0, "seconds": 2.0},
            {"name": "b", "direction": "backward", "calls": 10.0, "seconds": 4.0},
        ],
    }
    shares = programs.unpacking(entry, content, {LINEAR: 0.02, BACK: -0.01})
    assert shares["forward"] == {"seconds": 0.2, "share": 0.1}
    assert shares["backward"] == {"seconds": -0.1, "share": -0.025}
    assert shares["step"] == {"seconds": 0.1, "share": 0.01}
    entry["programs"] = entry["programs"][:1]
    assert programs.unpacking(entry, content, {LINEAR: 0.02})["backward"] is None


def times(ours: float, plain: float, torch: float) -> dict[str, dict[str, float]]:
    found = {OURS: ours, PLAIN: plain, TORCH: torch}
    return {name: {"median": value, "fastest": value / 2} for name, value in found.items()}


def test_the_figures_of_a_product() -> None:
    # In the third round the machine was ten times slower for all.
    rounds = [times(0.1, 0.08, 0.05), times(0.12, 0.1, 0.08), times(1.0, 0.9, 1.0)]
    entry = kernels.summarize(LINEAR, rounds)
    ours = entry["implementations"][OURS]
    assert (ours["seconds"], ours["least"], ours["most"], ours["fastest"]) == (0.12, 0.1, 1.0, 0.05)
    assert ours["gflops"] == pytest.approx(LINEAR.flops / 0.12e9, abs=0.05)
    assert XNNPACK not in entry["ratios"]
    assert entry["ratios"][TORCH] == {
        "ratio": 1.5,
        "ratio_least": 1.0,
        "ratio_most": 2.0,
        "ratio_of_fastest": 2.0,
    }
    assert kernels.extra_seconds([entry]) == {LINEAR: pytest.approx(0.02)}


# What is shown.


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    bundle = write_bundle(tmp_path / "bundle")
    rounds = [{str(one): taken(1.0, 2.0, 3.0) for one in (MEBP, MEZO, BASELINE)}]
    entries = summary.results([MEBP, MEZO, BASELINE], rounds, {MEBP: bundle, MEZO: bundle})
    program = {
        "name": "layer.0@256",
        "family": "layer.0",
        "direction": "forward",
        "calls": 30.0,
        "seconds": 0.6,
        "call_seconds": 0.02,
        "planned_mb": 9.4,
        "gflop": 2.0,
    }
    for entry in entries[:2]:
        entry["programs"] = [program]
    share = {"seconds": 0.05, "share": 0.25}
    return {
        "results": entries,
        "ratios": summary.ratios([MEBP, MEZO, BASELINE], rounds),
        "kernels": [kernels.summarize(LINEAR, [times(0.1, 0.08, 0.05)])],
        "unpacking": [{"name": str(MEBP), "forward": share, "backward": None, "step": share}],
        "conditions": {
            "model": {"name": "m", "parameters": 1000},
            "settings": {},
            "cpu": "a CPU",
            "cores": 2,
            "threads": 2,
            "system": "Linux",
            "python": "3",
            "versions": {"torch": "2"},
            "rounds": 1,
            "steps_at_most": 5,
            "warmup": 1,
            "date": "2026-01-01T00:00:00",
            "load_average": [0.1, None],
            "workload": "rows",
            "baselines": ["autograd: so"],
            "memory": "memory: so",
            "kernels": "products: so",
        },
    }


def test_sections_are_shown_and_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    output.write(tmp_path, result)
    assert json.loads((tmp_path / output.JSON).read_text()) == result
    text = (tmp_path / output.MARKDOWN).read_text()
    assert f"]({output.PICTURE})" in text and f"]({sections.PICTURE})" in text
    assert "| mezo by layers | int4/" in text and "| mebp | int4/" in text
    assert "| mebp | 256 | layer.0@256 | 30 | 20 | 60.0% | 9.4 | 2 | 100 |" in text
    assert f"| {MEBP} | 25.0% | - | 25.0% | 0.05 |" in text
    assert f"| {LINEAR} | 100 | 50 | - | 80 | 2 (2) | - | 1.25 (1.25) |" in text
    assert "- autograd: so\n- memory: so\n- products: so\n" in text
    first = (tmp_path / sections.PICTURE).read_bytes()
    assert first.startswith(b"\x89PNG")
    assert sections.draw(tmp_path / sections.PICTURE, result)
    assert (tmp_path / sections.PICTURE).read_bytes() == first
    shown = "\n".join(output.lines(result))
    assert "step over mezo" in shown and "Unpacking weights:" in shown
    whole = {**result, "results": [dict(entry, programs=[]) for entry in result["results"]]}
    assert not sections.draw(tmp_path / "none.png", whole)
    assert not (tmp_path / "none.png").exists()


def test_every_method_has_a_color() -> None:
    assert {sections.color_of(method) for method in sections.COLORS} == {*sections.COLORS.values()}
    assert sections.color_of("senszoq") == sections.color_of("another")
    assert sections.color_of("senszoq") not in sections.COLORS.values()


def test_methods_without_a_color_of_their_own_are_drawn(
    result: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    for entry in result["results"][:2]:
        entry["method"] = "senszoq"
    update = {**result["results"][0]["programs"][0], "name": "update", "family": None}
    result["results"][0]["programs"].append(update)
    assert sections.draw(tmp_path / "sections.png", result)
    output.write(tmp_path, result)
    assert "| update |" in (tmp_path / output.MARKDOWN).read_text()


def test_variants_of_given_split_bundles() -> None:
    manifest = {
        "method": "mebp",
        "stages": [],
        "settings": {
            "seq_len": 32,
            "batch": 2,
            "weights": "int8",
            "lora.layers": "all",
            "lora.targets": "all-linear",
        },
    }
    found = matrix.of_bundle(Path("b"), manifest, ["all"], True)
    shape = Shape(32, 2, 1, targets="all-linear")
    assert found == [
        Variant("mebp", "int8", shape, Path("b"), "layers"),
        Variant(AUTOGRAD, "fp32", shape, Path("b")),
    ]
    zeroth = {**manifest, "method": "mezo", "settings": {**manifest["settings"], "queries": 4}}
    assert matrix.of_bundle(Path("b"), zeroth, ["all"], True)[1] == dataclasses.replace(
        found[1], method=EAGER, shape=dataclasses.replace(shape, queries=4)
    )


def test_what_shaders_did_in_a_step() -> None:
    """Times are medians of the rounds; a device without a clock has none, and then no rates."""

    def round_of(seconds: float | None) -> Sample:
        cost = {"dispatches": 3.0, "flops": 6e9, "bytes": 1e9}
        kernels: dict[str, dict[str, float | None]] = {
            "product int4": {**cost, "seconds": seconds},
            "rows": {**cost, "seconds": None if seconds is None else 1.0},
        }
        return Sample([4.0], {}, None, None, None, kernels=kernels)

    product, rows = shaders.of_variant([round_of(2.0), round_of(3.0), round_of(9.0)])
    assert product == {
        "name": "product int4",
        "dispatches": 3.0,
        "seconds": 3.0,
        "share": 0.75,
        "gflop": 6.0,
        "gb": 1.0,
        "gflop_s": 2.0,
        "gb_s": 0.33,
    }
    assert rows["share"] == 0.25
    (untimed, _) = shaders.of_variant([round_of(None)])
    assert (untimed["gflop"], untimed["dispatches"]) == (6.0, 3.0)
    assert {untimed[key] for key in ("seconds", "share", "gflop_s", "gb_s")} == {None}
    assert shaders.of_variant([Sample([4.0], {}, None, None, None)]) == []
