"""Log-probabilities of labels and their gradient, as operators of namespace ``zoexport``; ``ops`` imports this module.

Of logits, and of a linear layer whose logits nobody keeps (``runtime_ops/kernels/linear_label_logprobs.h``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoexport.core import int4
from zoexport.ir.declare import like, operator
from zoexport.ir.op_arguments import check_labels
from zoexport.ir.product_ops import rounded_rows


@operator(
    lambda logits: (logits.new_empty(logits.shape[:2]), logits.new_empty(logits.shape[:2])),
    "logprobs",
    "is_argmax",
)
def label_logprobs(logits: Tensor, label_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each label entry under each copy.

    Args:
        logits: float32 (C, M, V).
        label_tokens: int64 (M), each in [0, V).

    Returns:
        logprobs float32 (C, M), and is_argmax float32 (C, M): 1 if the label is the lowest index
        of the largest logit, else 0.

    Raises:
        ValueError: other shapes or dtypes, or a label out of range.
    """
    if logits.dim() != 3 or logits.dtype != torch.float32 or logits.shape[2] == 0:
        raise ValueError(
            f"logits is {logits.dtype} {tuple(logits.shape)}; expected float32 (C, M, V)"
        )
    check_labels(label_tokens, *logits.shape[1:])
    index = label_tokens.unsqueeze(1)
    logprobs = torch.empty(logits.shape[:2], dtype=torch.float32)
    is_argmax = torch.empty_like(logprobs)
    for copy in range(logits.shape[0]):  # one copy at a time bounds the double-precision temporary
        row = logits[copy].double()
        logprobs[copy] = (row.gather(1, index).squeeze(1) - row.logsumexp(dim=1)).float()
        is_argmax[copy] = (row.argmax(dim=1) == label_tokens).float()
    return logprobs, is_argmax


# --- of a linear layer ----------------------------------------------------------------------------


def _scored(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:2]), x.new_empty(x.shape[:2])


@operator(_scored, "logprobs", "is_argmax")
def linear_label_logprobs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float,
    cap: float,
    label_tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`label_logprobs` of the logits scale * (x W^T (+ bias)), each within +-cap by tanh where cap is not 0.

    Args:
        x: float32 (C, M, K). weight: float32 (V, K). bias: float32 (V) or None.
        scale, cap: numbers, cap not below 0.
        label_tokens: int64 (M), each in [0, V).
    """
    logits = scale * torch.nn.functional.linear(x, weight, bias)
    return label_logprobs(cap * torch.tanh(logits / cap) if cap else logits, label_tokens)


@operator(_scored, "logprobs", "is_argmax")
def linear_label_logprobs_int4(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    scale: float,
    cap: float,
    label_tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`linear_label_logprobs` of an int4 weight (docs/formats.md)."""
    weight = int4.dequantize_int4(codes, scales)
    return linear_label_logprobs(x, weight, bias, scale, cap, label_tokens)


@operator(_scored, "logprobs", "is_argmax")
def rounded_linear_label_logprobs_int4(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    scale: float,
    cap: float,
    label_tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """:func:`linear_label_logprobs_int4` of x rounded to 8 bits (``product_ops.rounded_rows``)."""
    return linear_label_logprobs_int4(
        rounded_rows(x), codes, scales, bias, scale, cap, label_tokens
    )


# --- their gradient -------------------------------------------------------------------------------


def _graded(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    count = logits.shape[:1]
    return logits.new_empty(count), logits.new_empty(count), like(logits)


@operator(_graded, "logprobs", "is_argmax", "gradient")
def label_gradient(
    logits: Tensor, label_tokens: Tensor, label_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probability of each label entry, and the gradient of their weighted sum by the logits.

    Args:
        logits: float32 (M, V).
        label_tokens: int64 (M), each in [0, V).
        label_weights: float32 (M).

    Returns:
        logprobs and is_argmax, float32 (M), as ``label_logprobs`` gives them for one copy; gradient float32 (M, V),
        ``label_weights[m] * (onehot(label_tokens[m]) - softmax(logits[m]))``.

    Raises:
        ValueError: other shapes or dtypes, or a label out of range.
    """
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.shape[1] == 0:
        raise ValueError(f"logits is {logits.dtype} {tuple(logits.shape)}; expected float32 (M, V)")
    count, vocabulary = logits.shape
    check_labels(label_tokens, count, vocabulary)
    if label_weights.dtype != torch.float32 or label_weights.shape != (count,):
        raise ValueError(
            f"label_weights is {label_weights.dtype} {tuple(label_weights.shape)}; "
            f"expected float32 ({count})"
        )
    index = label_tokens.unsqueeze(1)
    logprobs = torch.log_softmax(logits.double(), dim=1)
    gradient = -logprobs.exp()
    chosen = logprobs.gather(1, index)
    gradient.scatter_(1, index, -torch.expm1(chosen))
    gradient *= label_weights.unsqueeze(1)
    is_argmax = (logits.argmax(dim=1) == label_tokens).float()
    return chosen.squeeze(1).float(), is_argmax, gradient.float()
