"""Memory that a step takes: no logits of label rows, however many there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compiled import Compiler
from tests.support.tiny_models import VOCAB_SIZE
from zoexport.tools.bench.matrix import Shape
from zoexport.tools.bench.runner import run_steps
from zoexport.tools.bench.workload import examples_file

pytestmark = pytest.mark.parity

SEQ, BATCH, QUERIES = 64, 32, 8


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not say how much memory is used"
)
def test_no_logits_are_kept(compiler: Compiler, tmp_path: Path) -> None:
    bundle = compiler.bundle("llama", max_length=SEQ, batch_size=BATCH, num_queries=QUERIES)
    anonymous = {}
    for labels in ("all", "last"):
        examples = examples_file(tmp_path, Shape(SEQ, BATCH, QUERIES, labels=labels), VOCAB_SIZE)
        sample = run_steps(bundle, examples, threads=1, steps=2, warmup=0)
        assert sample.peak_anonymous_mb is not None
        anonymous[labels] = sample.peak_anonymous_mb
    logits = 2 * QUERIES * BATCH * (SEQ - 2) * VOCAB_SIZE * 4 / 1e6
    assert anonymous["all"] < anonymous["last"] + 0.4 * logits
