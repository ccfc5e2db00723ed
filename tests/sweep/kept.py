"""Cases that failed once, as small as the sweep made them, each with what was wrong."""

from __future__ import annotations

from tests.sweep.cases import Case

KEPT = (
    # ALiBi is a table with a part for every row of every head: more rows ran than the table was captured with.
    Case(method="quzo", architecture="bloom", weights="int8", batch=2, queries=3),
    # With one head, XNNPACK's form of attention merges two axes of the sequence, each of which was to be replaced.
    Case(
        architecture="starcoder2",
        hidden=64,
        head_dim=14,
        seq_len=12,
        batch=2,
        rank=1,
        targets="one:5",
        queries=1,
    ),
    # An operator that no other activation has, and only ExecuTorch had a rule for.
    Case(
        target="ios-mlx",
        method="mebp",
        variant="squared relu",
        heads=2,
        head_dim=8,
        rank=1,
    ),
    # Falcon's newer decoder shares keys by broadcast_to, which only ExecuTorch had a rule for.
    Case(
        target="ios-mlx",
        architecture="falcon",
        variant="new, shared keys",
        heads=2,
        head_dim=8,
        rank=1,
    ),
    Case(target="ios-coreml", architecture="falcon", variant="new", heads=2, head_dim=8, rank=1),
    # Core ML's converter takes constants alone for a norm's weights, and here they are trained.
    Case(
        target="ios-coreml",
        method="spzo",
        architecture="gpt2",
        layers=2,
        engine="executorch",
        split="layer:1",
        train="full",
        perturbations="1,1",
    ),
    # Layers of one program, the integers of some of which are trained.
    Case(method="quzo", layers=2, weights="int8", queries=1, lora_layers="last:1"),
    # Slot 11 had the noise of slot 8: rows of 11 tokens, at which the model is captured, were cut to 8.
    Case(architecture="cohere2", layers=3, heads=2, targets="all-linear"),
)

ON_THE_NPU = (
    # The HTP read zeros where four rows share a table of positions: all but the first had none.
    Case(
        target="android-npu",
        method="mezo",
        architecture="gpt2",
        vocabulary=320,
        hidden=64,
        heads=2,
        kv_heads=2,
        head_dim=32,
        intermediate=64,
        std=0.02,
        seq_len=24,
        batch=4,
        queries=1,
        rank=3,
    ),
    # The table of int8 embeddings' scales was computed in the program, and QNN gathers from constants alone.
    Case(target="android-npu", architecture="phi", weights="int8", queries=1, rank=1),
    # QNN's operator for norms gives wrong numbers for 9 and 11 rows of tokens.
    Case(
        target="android-npu",
        method="mebp",
        hidden=100,
        heads=4,
        kv_heads=4,
        head_dim=24,
        seq_len=24,
        batch=11,
        rank=2,
    ),
)


def few_copies(architecture: str, soc: str, targets: str) -> list[Case]:
    """Batches of few rows on the NPU: one row, 1 to 8 directions, at several ranks, of a model of no round sizes."""
    return [
        Case(
            target="android-npu",
            architecture=architecture,
            vocabulary=307,
            hidden=96,
            heads=6,
            kv_heads=2,
            head_dim=16,
            layers=3,
            intermediate=160,
            seq_len=32,
            soc=soc,
            targets=targets,
            queries=queries,
            rank=rank,
        )
        for queries in (1, 2, 4, 8)
        for rank in (4, 5, 8, 16)
    ]
