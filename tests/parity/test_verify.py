"""What ``compile`` refuses to write: bundles that do not open, or compute something else than the model."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.compiled import Compiler, compile_tiny
from zoexport.compiler import build, parity_short
from zoexport.core.errors import LoweringError
from zoexport.core.graph import Program, TrainingGraph
from zoexport.ir.graphs import aten, call, output_node
from zoexport.session import Session

pytestmark = pytest.mark.parity

MODEL = "llama_tied"


def broken(monkeypatch: pytest.MonkeyPatch, family: str, change: Callable[[Program], None]) -> None:
    """Change every program of a family after the passes."""
    graph_of = build.training_graph

    def changed(*args: Any, **named: Any) -> TrainingGraph:
        graph = graph_of(*args, **named)
        programs = [program for program in graph.programs.values() if program.called == family]
        assert programs
        for program in programs:
            change(program)
        return graph

    monkeypatch.setattr(build, "training_graph", changed)


def scale_output(number: int, factor: float) -> Callable[[Program], None]:
    """Multiply one output of a program."""

    def change(program: Program) -> None:
        end = output_node(program.module)
        results: list[Any] = list(end.args[0])  # type: ignore[arg-type]
        with program.module.graph.inserting_before(end):
            results[number] = call(program.module.graph, aten.mul.Tensor, results[number], factor)
        end.args = (tuple(results),)

    return change


@pytest.mark.parametrize(
    ("method", "family", "number"),
    [
        ("mebp", "layer.0", 0),
        ("mebp", "layer.0.backward", -1),
        ("mebp", "layer.0.backward.from_saved", -1),
        ("prge", "head", 0),
        ("spzo", "head", 0),
    ],
)
def test_wrong_program_is_refused_by_name(
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    method: str,
    family: str,
    number: int,
) -> None:
    broken(monkeypatch, family, scale_output(number, 1.01))
    with pytest.raises(LoweringError, match=family.replace(".", r"\.")):
        compile_tiny(compiler.model(MODEL), tmp_path / "bundle", method, verify=True)
    assert list(tmp_path.iterdir()) == []


def test_bundle_that_does_not_open_is_refused(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damaged(folder: Path, *rest: Any) -> Any:
        content = bytearray((folder / "model.pte").read_bytes())
        content[64:4096] = bytes(4096 - 64)
        (folder / "model.pte").write_bytes(content)
        return verify(folder, *rest)

    verify = build._verified
    monkeypatch.setattr(build, "_verified", damaged)
    with pytest.raises(LoweringError, match=r"model\.pte"):
        compile_tiny(compiler.model(MODEL), tmp_path / "bundle", "mebp", verify=True)
    assert list(tmp_path.iterdir()) == []


def test_program_that_ends_the_process_is_refused(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crashing(*_: Any) -> tuple[list[str], dict[str, str]]:
        answer = '{"doing": "evaluating a row of 24 tokens"}'
        return ["sh", "-c", f"echo '{answer}'; kill -SEGV $$"], {}

    monkeypatch.setattr(parity_short.children, "python", crashing)
    with pytest.raises(LoweringError, match=rf"status -{signal.SIGSEGV:d} while evaluating a row"):
        compile_tiny(compiler.model(MODEL), tmp_path / "bundle", "mebp", verify=True)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_shorter_than_the_row_is_compared_at_its_end(
    compiler: Compiler, tmp_path: Path
) -> None:
    settings = {"generate": True, "generate__context": 16}
    result = compile_tiny(compiler.model(MODEL), tmp_path / "bundle", verify=True, **settings)
    assert result["verified"]["passed"]


@pytest.mark.parametrize("target", ["host", "ios-mlx"])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_quantized_whole_program_is_verified(
    compiler: Compiler, tmp_path: Path, target: str, weights: str
) -> None:
    model = compiler.model(MODEL)
    made = compile_tiny(model, tmp_path / "bundle", "prge", target, verify=True, weights=weights)
    assert made["verified"]["passed"], made["verified"]["reason"]


def test_no_verify_writes_and_says_so(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken(monkeypatch, "layer.0", scale_output(0, 2.0))
    made = compile_tiny(compiler.model(MODEL), tmp_path / "bundle", "mebp", verify=False)
    assert made["verified"] == {
        "passed": None,
        "loss": None,
        "gradient": None,
        "state": None,
        "reason": "verify=False",
    }
    Session.open(tmp_path / "bundle").close()


def test_unsigned_bundle_is_verified_where_keys_are_required(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"  # minisign's own
    monkeypatch.setenv("ZOEXPORT_TRUST", key)
    made = compile_tiny(compiler.model(MODEL), tmp_path / "bundle", "mebp", verify=True)
    assert made["verified"]["passed"] is True


def test_weights_that_do_not_fit_are_not_compared(compiler: Compiler) -> None:
    from zoexport import models

    bundle = compiler.bundle(MODEL, "quzo", weights="int4", num_queries="1")
    loaded = models.load(models.resolve(str(compiler.model(MODEL))), lazy=True)
    found = parity_short.prove(bundle, loaded, loaded.weights, 0.0, lambda *_: None)
    assert found.loss is None
    assert "MB of weights would be read" in found.reason


def test_streamed_model_computes_as_in_memory(compiler: Compiler) -> None:
    from zoexport import models
    from zoexport.models.streaming import streaming

    source = models.resolve(str(compiler.model(MODEL)))
    tokens = torch.arange(12).view(1, -1)
    expected = models.load(source).model(tokens).logits
    loaded = models.load(source, lazy=True)
    with streaming(loaded.model, loaded.weights):
        loaded.model.double()
        found = loaded.model(tokens).logits
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-4)
