"""The tables of programs and products of a measurement, on made-up times and of a compiled bundle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from research.performance import kernels
from research.performance.kernels import MARK
from research.support.products import Content, Product, contents, flops_of_attention, product_of
from tests.support.compiled import Compiler
from zoexport.session import Bundle
from zoexport.tools.bench import output

LINEAR = Product("linear_int4", 1, 256, 576, 1536, 32)
BACK = Product("linear_int4_input_gradient", 1, 256, 1536, 576, 32)


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


@pytest.mark.parity
@pytest.mark.slow
def test_kernel_tables_of_a_compiled_bundle(compiler: Compiler, tmp_path: Path) -> None:
    """The command compares the result of each implementation with the exact product."""
    bundle = compiler.bundle("llama", "mebp", weights="int4", lora__target_modules="all-linear")
    content, manifest = contents(bundle), Bundle.open(bundle).manifest
    assert set(content) == {program["name"] for program in manifest["programs"]}
    layer, back = content["layer.0@24"], content["layer.0.backward@24"]
    # Query and output, key and value, gate and up, down.
    assert {product: count for product, count in layer.products.items() if product.int4} == {
        Product("linear_int4", 1, 72, 64, 64, 32): 2,
        Product("linear_int4", 1, 72, 64, 32, 32): 2,
        Product("linear_int4", 1, 72, 64, 128, 32): 2,
        Product("linear_int4", 1, 72, 128, 64, 32): 1,
    }
    assert Product("matmul", 1, 72, 64, 4) in layer.products
    assert back.flops > layer.flops and 0 < layer.planned_bytes < back.planned_bytes

    calls = {"layer.0@24": 2.0, "layer.0.backward@24": 2.0, "head.backward": 0.0}
    entry = {
        "name": "ours",
        "method": "mebp",
        "max_length": 24,
        "bundle": str(bundle),
        "calls_by_part": calls,
        "seconds_by_part": dict.fromkeys(calls, 0.5),
        "step_seconds": 1.0,
    }
    found = kernels.programs(entry, tmp_path)
    assert [(program.name, program.backward) for program in found] == [
        ("layer.0@24", False),
        ("layer.0.backward@24", True),
    ]
    assert kernels.programs({**entry, "bundle": None}, tmp_path) == []
    about = {"cpu": "a processor", "threads": 1, "date": "2026-01-01T00:00:00"}
    (tmp_path / output.JSON).write_text(json.dumps({"results": [entry], "conditions": about}))
    page = tmp_path / "page.md"
    page.write_text(f"<!-- {MARK} -->\nold\n<!-- /{MARK} -->\n")
    command = [sys.executable, "-m", "research.performance.kernels", page, tmp_path]
    subprocess.run([*command, "--rounds", "1"], check=True)
    text = page.read_text()
    assert "| mebp | 24 | layer.0@24 | 2 | 250 | 50.0% |" in text and "old" not in text
    assert "| ours | " in text
    lines = [line for line in text.splitlines() if line.startswith("| linear_int4")]
    assert {line.split()[1] for line in lines} == {"linear_int4", "linear_int4_input_gradient"}
    assert all(" - " not in line for line in lines)
    assert f"{MARK},linear_int4 72 x 64 x 128," in page.with_suffix(".csv").read_text()
