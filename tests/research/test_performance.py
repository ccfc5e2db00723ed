"""The page of a benchmark, from a measurement that was taken."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from research.performance import architectures, limited, page, roofline
from research.support.products import contents
from tests.support.benchmarks import CONDITIONS
from tests.support.compiled import Compiler
from zoexport.tools.bench import output, summary
from zoexport.tools.bench.matrix import AUTOGRAD, Shape, Variant, measured_variant
from zoexport.tools.bench.runner import Sample
from zoexport.tools.plan import plan_training


def measured() -> dict[str, Any]:
    """A result of ``zoexport bench --grid mebp`` at 256 tokens, with made-up times."""
    shape = Shape(256, 1, 1, targets="all-linear")
    variants = [
        *(Variant("mebp", "int4", shape, activation_cache_mb=keep) for keep in (0, 2000)),
        Variant("mezo", "int4", shape),
        Variant(AUTOGRAD, "fp32", shape),
    ]
    taken = {str(one): Sample([1.0] * 3, {"forward": 1.0}, None, 3.0, 2.0) for one in variants}
    entries = summary.results(variants, [taken], {})
    for entry in entries:
        entry["bundle_bytes"] = 1000
    return {
        "results": entries,
        "ratios": summary.ratios(variants, [taken]),
        "conditions": {**CONDITIONS, "load_average": [0.1, 0.2]},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written = tmp_path / "bench"
    written.mkdir()
    (written / output.JSON).write_text(json.dumps(measured()))
    return written


def test_a_page_is_renewed_between_its_marks(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    page.update(path, folder)
    first = path.read_text()
    assert first.startswith("before\n") and first.endswith("after\n") and "old" not in first
    result: dict[str, Any] = json.loads((folder / output.JSON).read_text())
    assert "| mebp, activation_cache_mb 0 | int4/" in first
    assert output.markdown(result) in first
    kept = path.with_suffix(".csv").read_text()
    assert "bench,mezo,int4/" in kept and "bench,1," in kept
    page.update(path, folder)
    assert path.read_text() == first and path.with_suffix(".csv").read_text() == kept
    path.write_text("no marks\n")
    assert page.main([str(path), str(folder)]) == 2
    assert path.read_text() == "no marks\n"


def test_table_of_newer_architectures(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "gemma3-270m")
    header, _, row = architectures.text(tmp_path).splitlines()[:3]
    assert header.startswith("| model | weights MB | s, mebp | s, saved | s, mezo | s, PyTorch |")
    assert row == "| gemma3-270m | 0 | 1.00 | 1.00 | 1.00 | 1.00 | 2 | 2 | 2 | 2 | - | - |"


def test_steps_beside_the_peak(compiler: Compiler, tmp_path: Path) -> None:
    """The operations of a step are those of its programs' calls."""
    bundle = compiler.bundle("llama", "mebp", weights="int4", lora__target_modules="all-linear")
    name, content = next((name, one) for name, one in contents(bundle).items() if one.flops)
    ours = {
        "method": "mebp",
        "name": "ours",
        "max_length": 128,
        "activation_cache_mb": 0,
        "bundle": bundle.name,
        "calls_by_part": {name: 3.0},
        "seconds_by_part": {name: 1.5},
        "step_seconds": 2.0,
    }
    result = {
        "results": [ours, {"method": "autograd", "max_length": 128, "step_seconds": 4.0}],
        "ratios": [{"kind": "step over autograd", "of": "ours", "ratio": 0.5}],
        "conditions": {"cpu": "a processor", "threads": 1, "date": "2026-01-01T00:00:00"},
    }
    (tmp_path / output.JSON).write_text(json.dumps(result))
    path = tmp_path / "page.md"
    path.write_text("<!-- bench-roofline -->\nold\n<!-- /bench-roofline -->\n")
    work = tmp_path / "work"
    work.mkdir()
    (work / "bundles").symlink_to(bundle.parent)
    command = [str(path), str(tmp_path), "--work", str(work)]
    program = tmp_path / "peak"
    peak = {"variant": "v", "threads": 1, "gflops": 4 * content.flops / 1e9, "gb_s": 1}
    program.write_text(f"#!/bin/sh\ntest $1 = 1 && echo '{json.dumps(peak)}'\n")
    program.chmod(0o755)
    assert roofline.main([*command, "--peak", str(program)]) == 0
    written = path.read_text()
    # 3 calls take 0.75 s at the peak: of 2 s measured, and of 0.8 * 4 s asked.
    assert "| 0.75 | 2 | 38% | 4 | 0.5 | 0.80 | 23% |" in written and "old" not in written
    assert roofline.main([*command, "--peak", str(tmp_path / "none")]) == 2
    assert roofline.main([str(path), str(tmp_path / "none")]) == 2
    assert path.read_text() == written


def test_steps_of_prge_beside_the_peaks(tmp_path: Path) -> None:
    """Operations are those of the plan; int8 inputs are compared with the peak of bytes, where that is known."""
    shape = Shape(64, 1, 1)
    theirs = {"method": "eager", "name": "theirs", "step_seconds_fastest": 0.8}
    entries, ratios = [theirs], []
    for weights, activations in (("int4", "int8"), ("fp32", "fp32")):
        variant = Variant("prge", weights, shape)
        entry = {**dataclasses.asdict(variant), **dataclasses.asdict(shape), "name": str(variant)}
        entries.append({**entry, "activations": activations, "step_seconds_fastest": 0.2})
        of = {"of": str(variant), "to": "theirs", "ratio_of_fastest": 4.0}
        ratios.append({**of, "kind": "faster than eager"})
        assert measured_variant(entry) == variant
    model = "shape:smollm2-135m"
    settings = {"num_queries": "1", "batch_size": "1", "max_length": "64", "weights": "int4"}
    plan = plan_training(
        model, method="prge", target="host", settings=settings, progress=lambda phase, done: None
    )
    rate = plan["flops_per_step"] / 1e9
    about = {"model": {"source": model}, "target": "host", "settings": {}}
    machine = {"cpu": "a processor", "threads": 1, "date": "2026-01-01T00:00:00"}
    result = {"results": entries, "ratios": ratios, "conditions": {**about, **machine}}
    (tmp_path / output.JSON).write_text(json.dumps(result))
    path = tmp_path / "page.md"
    path.write_text("<!-- bench-roofline-prge -->\nold\n<!-- /bench-roofline-prge -->\n")
    program = tmp_path / "peak"

    def page_at(**peak: Any) -> str:
        found = {"variant": "v", "threads": 1, "gb_s": 1, **peak}
        program.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
        program.chmod(0o755)
        assert roofline.main([str(path), str(tmp_path), "--peak", str(program)]) == 0
        return path.read_text()

    both = page_at(gflops=2.5 * rate, byte_gops=10 * rate, bytes_variant="b")
    # At the peak 0.1 s and 0.4 s, of 0.2 s; PyTorch's takes half of 0.8 s; 5 and 2.4 times as fast are asked.
    assert "| 0.1 | 0.2 | 50% | 0.8 | 50% | 4 | 5.0 | 62% |" in both and "old" not in both
    assert "| 0.4 | 0.2 | 200% | 0.8 | 50% | 4 | 2.4 | 120% |" in both and "of bytes (b)" in both
    alone = page_at(gflops=2.5 * rate)
    assert "| fp32/fp32 |" in alone and "| int4/int8 |" not in alone and "of bytes" not in alone


def test_steps_inside_a_limit(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes name themselves to the group; what they wrote is compared, and a plan is asked for."""
    group = tmp_path / "group"
    group.mkdir()
    (group / "memory.peak").write_text("5000000\n")

    @contextlib.contextmanager
    def limit(mb: float) -> Iterator[Path]:
        assert mb == 1
        yield group

    monkeypatch.setattr(limited, "memory_limit", limit)
    path = tmp_path / "page.md"
    path.write_text("<!-- bench-limited -->\nold\n<!-- /bench-limited -->\n")
    bundle = compiler.bundle("llama", "mebp", weights="int4", lora__target_modules="all-linear")
    command = [str(path), str(bundle), "--ram-mb", "1", "--steps", "3", "--threads", "1"]
    assert limited.main(command) == 0
    text = path.read_text()
    assert int((group / "cgroup.procs").read_text()) > 1
    assert "| 1 MB; they took 5 |" in text and "the same bytes |" in text and "old" not in text
