"""Cases that failed once, as small as the sweep made them, each with what was wrong."""

from __future__ import annotations

import itertools

from tests.sweep.cases import Case

KEPT = (
    # ALiBi is a table with a part for every row of every head: more rows ran than the table was captured with.
    Case(method="quzo", architecture="bloom", weights="int8", batch_size=2, num_queries=3),
    # With one head, attention merged two axes of the sequence, each of which was to be replaced.
    Case(
        architecture="starcoder2",
        hidden=64,
        head_dim=14,
        max_length=12,
        batch_size=2,
        lora_r=1,
        targets="one:5",
        num_queries=1,
    ),
    # An operator that no other activation has, and only ExecuTorch had a rule for.
    Case(
        target="ios-mlx",
        method="mebp",
        variant="squared relu",
        heads=2,
        head_dim=8,
        lora_r=1,
    ),
    # Falcon's newer decoder shares keys by broadcast_to, which only ExecuTorch had a rule for.
    Case(
        target="ios-mlx",
        architecture="falcon",
        variant="new, shared keys",
        heads=2,
        head_dim=8,
        lora_r=1,
    ),
    Case(target="ios-coreml", architecture="falcon", variant="new", heads=2, head_dim=8, lora_r=1),
    # After one step LoRA's second matrix is about 1e-7, and a gradient times it below fp16's smallest number.
    Case(target="ios-coreml", method="mebp", optimizer="sgd"),
    # That product, scaled to the other end of fp16's range, in sums over many rows.
    Case(
        target="ios-coreml",
        method="mebp",
        architecture="gemma2",
        variant="hard caps",
        vocabulary=333,
        hidden=64,
        heads=8,
        kv_heads=4,
        head_dim=18,
        layers=2,
        intermediate=20,
        window=5,
        std=0.02,
        weight_seed=90,
        max_length=24,
        batch_size=5,
        lora_r=16,
        alpha=32.0,
        targets="all-linear",
    ),
    # Layers of one program, the integers of some of which are trained.
    Case(method="quzo", layers=2, weights="int8", num_queries=1, lora_layers_to_transform="last:1"),
    # Slot 11 had the noise of slot 8: rows of 11 tokens, at which the model is captured, were cut to 8.
    Case(architecture="cohere2", layers=3, heads=2, targets="all-linear"),
    # Verification took the likeliest token of logits without the inputs that dropout left out.
    Case(
        method="mebp",
        architecture="gpt_neox",
        vocabulary=500,
        hidden=128,
        heads=2,
        kv_heads=2,
        head_dim=64,
        intermediate=20,
        std=0.02,
        weight_seed=18,
        max_length=12,
        batch_size=4,
        gradient_accumulation_steps=2,
        loss="choices",
        choices="mean",
        lora_r=2,
        alpha=8.0,
        lora_use_rslora=True,
        dropout=0.2,
        targets="one:5",
        max_grad_norm=0.1,
    ),
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
        max_length=24,
        batch_size=4,
        num_queries=1,
        lora_r=3,
    ),
    # The table of int8 embeddings' scales was computed in the program, and QNN gathers from constants alone.
    Case(target="android-npu", architecture="phi", weights="int8", num_queries=1, lora_r=1),
    # QNN's operator for norms gives wrong numbers for 9 and 11 rows of tokens.
    Case(
        target="android-npu",
        method="mebp",
        hidden=100,
        heads=4,
        kv_heads=4,
        head_dim=24,
        max_length=24,
        batch_size=11,
        lora_r=2,
    ),
    # As on ios-coreml: a gradient times LoRA's second matrix after one step.
    Case(target="android-npu", method="mebp", optimizer="sgd"),
    # A product of four axes for the one head of keys: the emulator crashed, of more rows it read it wrongly.
    *(
        Case(
            target="android-npu",
            vocabulary=320,
            hidden=96,
            heads=6,
            layers=2,
            intermediate=160,
            max_length=24,
            batch_size=rows,
            num_queries=1,
        )
        for rows in (1, 2)
    ),
)


QUERIES, RANKS = (1, 2, 4, 8), (4, 5, 8, 16)


def few_copies() -> list[Case]:
    """Batches of few rows on the NPU: one row, 1 to 8 directions, at several ranks, of models of no round sizes.

    Of the 192 combinations of model, chip, layers, directions and ranks every fourth, in Latin squares: each pair of
    two of these occurs, and each number of directions with each rank three times.
    """
    kinds = itertools.product(
        ("qwen2", "olmo2", "mistral"), ("SM8650", "SM8750"), ("attention", "all-linear")
    )
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
            max_length=32,
            soc=soc,
            targets=targets,
            num_queries=queries,
            lora_r=RANKS[(place + number) % len(RANKS)],
            steps=1,
        )
        for number, (architecture, soc, targets) in enumerate(kinds)
        for place, queries in enumerate(QUERIES)
    ]
