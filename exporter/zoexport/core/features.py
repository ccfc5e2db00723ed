"""Features that targets have and methods need."""

from __future__ import annotations

import enum


class Feature(enum.Enum):
    """Capability that a kind of program needs; the value completes "target T has no"."""

    WHOLE = "programs of the whole model"
    STAGES = "programs of single layers"
    SPARSE_PRODUCTS = "sparse product for single weights that are trained"
    INTEGER_PRODUCTS = "product that perturbs integers"
    ROUNDED_PRODUCTS = "product that rounds its inputs to 8 bits while it generates"
    TWO_INPUT_PRODUCTS = "products of two inputs, and weights that are trained are inputs"
    ATTENTION = "operator of attention and of its gradient"
    SAVED_PRODUCTS = "programs that save products' results for the backward pass"
    DROPOUT = "inputs by which adapters leave out some of theirs"
    MODEL_OPERATORS = (
        "operators for experts that a router chooses, recurrences and causal convolutions"
    )
    ENCODERS = "layers that hide padding, as those of masked language models do"
