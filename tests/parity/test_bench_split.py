"""The first-order baseline against the reference, products against torch, and the benchmark of a split tiny model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.parity.test_bench import bench
from tests.support.compiled import Compiler
from zoexport import models
from zoexport.bench import kernels, products
from zoexport.bench.autograd import EagerFirstOrder
from zoexport.bench.kernel_process import OURS, PLAIN, TORCH, XNNPACK
from zoexport.bench.matrix import Shape
from zoexport.bench.products import Product
from zoexport.bench.workload import examples
from zoexport.build import INITIAL_STATE
from zoexport.core import manifest as manifests
from zoexport.core.config import parse
from zoexport.methods import methods

pytestmark = [pytest.mark.parity, pytest.mark.slow]


def test_the_baseline_takes_the_references_steps(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", method="mebp", weight_decay=0.1, clip=0.5)
    manifest = manifests.read(bundle)
    settings = manifest["settings"]
    slots = load_file(str(bundle / INITIAL_STATE))
    model = models.load(models.resolve(str(compiler.model("llama")))).model
    config: Any = parse(methods.get("mebp").config, settings)
    rate = 0.01
    baseline = EagerFirstOrder(
        model,
        slots,
        scaling=config.scaling,
        learning_rate=rate,
        weight_decay=config.weight_decay,
        clip=config.clip,
    )
    batch = examples(Shape(settings["seq_len"], settings["batch"], 1), 320)
    rows = [example.candidates[0] for example in batch]
    tokens = torch.tensor([row.tokens for row in rows])
    labels = torch.tensor([row.labels for row in rows])
    timed = [baseline.step(tokens, labels) for _ in range(4)]
    baseline.close()
    reference = methods.get("mebp").reference(model, config, slots)
    expected = [reference.step(batch, rate)["losses"] for _ in range(4)]
    assert [step.losses[0] for step in timed] == pytest.approx(
        [one for (one,) in expected], rel=1e-5
    )
    assert timed[0].losses != pytest.approx(timed[-1].losses, rel=1e-3), "it trains"
    assert set(timed[0].parts) == {"forward", "backward", "update"}
    for name, value in reference.values().items():
        # AdamW divides by a gradient's size: where that is near nothing its rounding decides.
        off = (baseline.slots[name].detach() - value).norm() / value.norm()
        assert float(off) < 1e-3, name


def test_products_of_a_compiled_bundle(compiler: Compiler) -> None:
    bundle = compiler.bundle("llama", method="mebp", weights="int4", lora__targets="all-linear")
    found = products.contents(bundle)
    manifest = manifests.read(bundle)
    assert set(found) == {program["name"] for program in manifest["programs"]}
    tokens = 3 * 24
    forward, backward = found["layer.0@24"], found["layer.0.backward@24"]
    packed = {product: n for product, n in forward.products.items() if product.quantized}
    # Query and output, key and value, gate and up, down.
    assert packed == {
        Product("linear_int4", 1, tokens, 64, 64, 32): 2,
        Product("linear_int4", 1, tokens, 64, 32, 32): 2,
        Product("linear_int4", 1, tokens, 64, 128, 32): 2,
        Product("linear_int4", 1, tokens, 128, 64, 32): 1,
    }
    assert Product("matmul", 1, tokens, 64, 4) in forward.products
    gradients = {product for product in backward.products if product.gradient}
    assert Product("linear_int4_input_gradient", 1, tokens, 128, 64, 32) in gradients
    assert backward.flops > forward.flops
    assert 0 < forward.planned_bytes < backward.planned_bytes


def test_every_implementation_computes_the_product() -> None:
    """The process itself compares the results, and refuses what is off."""
    asked = [
        Product("linear_int4", 1, 24, 64, 128, 32),
        Product("linear_int4_input_gradient", 1, 24, 128, 64, 32),
        Product("linear_int8", 1, 24, 64, 128),
        Product("linear_int8_input_gradient", 1, 24, 128, 64),
        Product("rounded_linear_int4", 1, 24, 64, 128, 32),
        Product("linear_int4_bf16", 1, 24, 64, 128, 32),
        Product("linear_int8_bf16_input_gradient", 1, 24, 128, 64),
    ]
    found = kernels.measure(asked, threads=1, rounds=2, progress=lambda *_: None)
    assert [entry["name"] for entry in found] == [str(product) for product in asked]
    for entry in found:
        assert set(entry["implementations"]) == {OURS, PLAIN, TORCH, XNNPACK}
        assert all(
            0 < times["fastest"] <= times["least"] for times in entry["implementations"].values()
        )


def test_the_mebp_grid(
    compiler: Compiler, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--grid", "mebp", "--set", "lora.rank=4", "--rounds", "1", "--steps", "3", "--json")
    folder = tmp_path / "out"
    result = bench(
        capfd, compiler.model("llama"), *options, "--work", tmp_path / "work", "-o", folder
    )
    # A model of 128 positions.
    names = [(entry["method"], entry["seq_len"], entry["split"]) for entry in result["results"]]
    assert names == [
        ("mebp", 128, "layers"),
        ("mebp", 128, "layers"),
        ("mezo", 128, "layers"),
        ("autograd", 128, "whole"),
    ]
    mebp, kept, mezo, autograd = result["results"]
    assert [entry["keep_mb"] for entry in result["results"]] == [0, 2000, None, None]
    calls = {program["name"]: program["calls"] for program in mebp["programs"]}
    # Two layers; the head takes 128 labels, or 127, in chunks.
    assert (calls["embedding@128"], calls["layer.0@128"]) == (1, 2)
    assert calls["layer.0.backward@128"] == 2
    calls = {program["name"]: program["calls"] for program in kept["programs"]}
    assert calls["layer.0.saving@128"] == calls["layer.0.backward.from_saved@128"] == 2
    assert not calls.keys() & {"layer.0@128", "layer.0.backward@128"}
    for entry in (mebp, kept):
        directions = {program["name"]: program["direction"] for program in entry["programs"]}
        assert {*directions.values()} == {"forward", "backward"}
        assert {directions[name] for name in directions if ".backward" in name} == {"backward"}
    assert {program["name"]: program["calls"] for program in mezo["programs"]}["layer.0@128"] == 4
    for entry in (mebp, kept, mezo):
        for program in entry["programs"]:
            assert program["planned_mb"] >= 0 and program["call_seconds"] > 0
        inside = sum(program["seconds"] for program in entry["programs"])
        assert 0 < inside < 1.5 * entry["step_seconds"]
    assert set(autograd["share_by_part"]) == {"forward", "backward", "update"}
    assert {ratio["kind"] for ratio in result["ratios"]} == {
        f"{kind} over {other}"
        for kind in ("step", "anonymous MB", "peak MB")
        for other in ("mezo", "autograd")
    }
    assert {entry["operator"] for entry in result["kernels"]} == {
        "linear_int4",
        "linear_int4_input_gradient",
    }
    shares = {entry["name"]: entry for entry in result["unpacking"]}
    assert set(shares) == {mebp["name"], kept["name"], mezo["name"]}
    assert shares[mezo["name"]]["backward"] is None
    assert shares[mebp["name"]]["backward"] and shares[kept["name"]]["backward"]
    assert {path.name for path in folder.iterdir()} == {
        *("bench.json", "bench.md", "bench.png", "split.png")
    }
