"""Selection of tensors that are stored as fp16 on a GPU, for ``compute=fp16``.

Values passed between calls are fp16: results of products, row programs and attention. Inputs and
outputs of a program stay float32, as in the session, and so do logits, log-probabilities and sums
of attention's softmax, which need full precision. Calls compute in float32 and round their results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from zoexport.targets.vulkan.calls import Call, Calls, Tensor

_ALIKE = frozenset({"q", "k", "v", "out", "gradient", "dq", "dk", "dv"})
"""Operands of attention that its shader reads and writes in one type."""


def with_halves(calls: Calls) -> Calls:
    """``calls`` with the tensors that are fp16, which take half the words."""
    found = {tensor for call in calls.calls for tensor in call.written()}
    found -= {*calls.outputs, *calls.exact, *(gather.to for gather in calls.gathers)}
    for call in calls.calls:
        found -= set(_precise(call))
    attention = [set(_named(call, _ALIKE)) for call in calls.calls if _attends(call)]
    while mixed := [tensors for tensors in attention if tensors & found and tensors - found]:
        found = found.difference(*mixed)
    words = {
        tensor: -(-words // 2) if tensor in found else words
        for tensor, words in calls.words.items()
    }
    return dataclasses.replace(calls, words=words, halves=frozenset(found))


def _attends(call: Call) -> bool:
    return call.op.startswith("attention")


def _precise(call: Call) -> Iterable[Tensor]:
    """Operands that a call reads or writes in float32 only, or that are to keep its digits."""
    if call.op == "labels":
        return [*call.read(), *_named(call, {"logprobs", "is_argmax"})]
    if call.op == "unpack":
        return call.read()
    return _named(call, {"bias", "lse"}) if _attends(call) else ()


def _named(call: Call, keys: Iterable[str]) -> list[Tensor]:
    """Return the tensors with these keys."""
    operands = {**call.reads, **call.writes}
    found = (operands.get(key) for key in keys)
    return [one for one in found if one is not None and not isinstance(one, list)]
