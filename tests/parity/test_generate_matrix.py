"""Every method on every target that generates: the text of the bundle as compiled is that of transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.compiled import Compiler
from tests.support.generation import greedy, prompt_of, reference
from tests.support.matrix import CELLS, generates, problem_of
from tests.support.qnn import needs_qnn
from tests.support.tiny_models import VOCAB_SIZE
from zoexport.session import Bundle, Session
from zoexport.testing import PackageEngine

pytestmark = [pytest.mark.parity, pytest.mark.slow]
WEIGHTS = {"quzo": {"weights": "int4"}}
STEPS = 16


@pytest.mark.parametrize(
    ("method", "target", "settings"),
    # Of android-cpu the same programs as host's; those of a target without them say so before they compile.
    [
        pytest.param(*cell, marks=needs_qnn if cell[1] == "android-npu" else ())
        for cell in CELLS
        if cell[1] in ("host", "android-npu", "ios-mlx", "ios-coreml") and problem_of(*cell) is None
    ],
)
def test_a_cell_generates_or_says_why_not(
    compiler: Compiler, method: str, target: str, settings: dict[str, str]
) -> None:
    given: dict[str, Any] = {**settings, "generate": True, **WEIGHTS.get(method, {})}
    given |= {"compute": "fp32"} if target == "ios-coreml" else {}
    bundle = compiler.bundle("llama_tied", method, target, **given)
    entry = json.loads((bundle / "manifest.json").read_text())["generate"]
    assert ("problem" in entry) != generates(method, target, settings)
    if "problem" in entry:
        return
    engine = PackageEngine(Bundle.open(bundle)) if target == "ios-coreml" else None
    prompt = prompt_of(37, VOCAB_SIZE)
    with Session.open(bundle, engine=engine) as session:
        made = session.generate(prompt, max_new_tokens=STEPS, stop_tokens=())
    assert list(made.tokens) == greedy(
        reference(compiler.model("llama_tied"), bundle), prompt, STEPS
    )
