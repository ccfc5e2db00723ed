"""A Llama-shaped model that is called with many weights at once.

Tokens and activations have a group as their first dimension: a copy of a run, which may have weights of its own. What
groups share is multiplied once for all of them.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoexport.core.errors import ConfigError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"
"""Of what the head reads."""


@dataclasses.dataclass(frozen=True)
class Llama:
    """Sizes, and the parameters that a checkpoint has, by their names in transformers.

    Attributes:
        heads, key_heads: of queries, and of keys and values. size: of a head.
        inverse: of the rotary embedding, (size / 2). epsilon: of RMS norms.
        parameters: float32; a tied head is not among them.
    """

    layers: int
    heads: int
    key_heads: int
    size: int
    inverse: Tensor
    epsilon: float
    parameters: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: nn.Module, device: torch.device) -> Llama:
        """That of a ``LlamaForCausalLM``, on a device.

        Raises:
            ConfigError: a model of another kind, whose layers compute something else.
        """
        whole: Any = model
        config = whole.config
        biased = any(name.endswith(".bias") for name, _ in whole.named_parameters())
        if config.model_type != "llama" or biased:
            raise ConfigError(
                f"model of kind {config.model_type}",
                found="biases" if biased else "layers of its own",
                expected="Llama's layers, without biases",
                fix="Choose a Llama-shaped model, such as smollm2-135m.",
            )
        attention = whole.model.layers[0].self_attn
        own = {
            name: value.detach().to(device, torch.float32)
            for name, value in whole.named_parameters()
        }
        return cls(
            config.num_hidden_layers,
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
            whole.model.rotary_emb.inv_freq.to(device),
            config.rms_norm_eps,
            own,
        )

    def body(self, weights: Weights, tokens: Tensor) -> Tensor:
        """What the last layer gives, before its norm.

        Args:
            tokens: int64 (groups, rows, length); padding stands behind a row.

        Returns:
            float32 (groups, rows, length, width).
        """
        groups, rows, length = tokens.shape
        x = weights.embedded(tokens.flatten(1))
        angle = torch.arange(length, device=tokens.device)[:, None] * self.inverse
        angle = torch.cat([angle, angle], 1)
        turn = angle.cos(), angle.sin()

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(groups * rows, length, count, self.size).transpose(1, 2)

        for number in range(self.layers):
            layer = f"model.layers.{number}."
            h = self._norm(x, weights.vector(f"{layer}input_layernorm.weight"))
            q, k, v = (weights.product(f"{layer}self_attn.{n}_proj.weight", h) for n in "qkv")
            repeats = self.heads // self.key_heads
            query = _turned(heads(q, self.heads), *turn)
            key = _turned(heads(k, self.key_heads), *turn).repeat_interleave(repeats, 1)
            value = heads(v, self.key_heads).repeat_interleave(repeats, 1)
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            y = y.transpose(1, 2).reshape(groups, rows * length, -1)
            x = x + weights.product(f"{layer}self_attn.o_proj.weight", y)
            h = self._norm(x, weights.vector(f"{layer}post_attention_layernorm.weight"))
            gate = weights.product(f"{layer}mlp.gate_proj.weight", h)
            up = weights.product(f"{layer}mlp.up_proj.weight", h)
            x = x + weights.product(f"{layer}mlp.down_proj.weight", functional.silu(gate) * up)
        return x.view(groups, rows, length, -1)

    def logits(self, weights: Weights, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Of some ``tokens`` (k), or of all, of what :meth:`body` gives: (groups, n, width) to (groups, n, k)."""
        return weights.logits(self._norm(x, weights.vector(NORM)), tokens)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if weight.dim() == 1:
            return functional.rms_norm(x, x.shape[-1:], weight, self.epsilon)
        return functional.rms_norm(x, x.shape[-1:], None, self.epsilon) * weight


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of (rows, heads, length, size)."""
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cosine, torch.cat([-second, first], -1), sine)


class Weights(abc.ABC):
    """What a model is called with."""

    @abc.abstractmethod
    def embedded(self, tokens: Tensor) -> Tensor:
        """(groups, n) to (groups, n, width)."""

    @abc.abstractmethod
    def vector(self, name: str) -> Tensor:
        """Of a norm: (width) or (groups, 1, width)."""

    @abc.abstractmethod
    def product(self, name: str, x: Tensor) -> Tensor:
        """x W^T: (groups, n, inputs) to (groups, n, outputs)."""

    @abc.abstractmethod
    def logits(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Of some ``tokens`` (k), or of all: (groups, n, width) to (groups, n, k)."""


class Shared(Weights):
    """One set of weights for all groups; a subclass may add to what a product gives."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._last: tuple[Tensor, Pieces] | None = None

    def embedded(self, tokens: Tensor) -> Tensor:
        """Rows of the one table."""
        return self._parameters[EMBEDDING][tokens]

    def vector(self, name: str) -> Tensor:
        """The same for all groups."""
        return self._parameters[name]

    def product(self, name: str, x: Tensor) -> Tensor:
        """One product for all groups."""
        # Query, key and value read the same, and so do gate and up.
        if self._last is None or self._last[0] is not x:
            self._last = x, pieces(x.detach())
        return _product(x, self._parameters[name], self._last[1])

    def logits(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """One product for all groups."""
        weight = self._parameters.get(HEAD, self._parameters[EMBEDDING])
        return _product(x, weight if tokens is None else weight[tokens], pieces(x.detach()))


class Own(Weights):
    """Weights of each group, (groups, ...), over those that all share."""

    def __init__(self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
        self._shared, self._own = Shared(shared), own
        self._head = HEAD if HEAD in shared or HEAD in own else EMBEDDING

    def embedded(self, tokens: Tensor) -> Tensor:
        """Rows of each group's table."""
        own = self._own.get(EMBEDDING)
        if own is None:
            return self._shared.embedded(tokens)
        return torch.stack([table[row] for table, row in zip(own, tokens, strict=True)])

    def vector(self, name: str) -> Tensor:
        """Each group's."""
        own = self._own.get(name)
        return self._shared.vector(name) if own is None else own[:, None]

    def product(self, name: str, x: Tensor) -> Tensor:
        """A product a group."""
        own = self._own.get(name)
        return self._shared.product(name, x) if own is None else x @ own.mT

    def logits(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """A product a group."""
        own = self._own.get(self._head)
        if own is None:
            return self._shared.logits(x, tokens)
        return x @ (own if tokens is None else own[:, tokens]).mT


Pieces = tuple[Tensor, ...]
"""Tensors (n, inputs) that make up one, of which TF32 multiplies each with little error or none."""


def pieces(x: Tensor) -> Pieces:
    """On CUDA the first 11 bits of x, and what they leave; elsewhere x.

    TF32 has 11 significant bits, as many as a weight of int4 times a bfloat16 scale, or a bfloat16 weight, has at most:
    those are multiplied as they are.
    """
    flat = x.reshape(-1, x.shape[-1])
    if not flat.is_cuda:
        return (flat,)
    first = (flat.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return flat - first, first


def _product(x: Tensor, weight: Tensor, of: Pieces) -> Tensor:
    """x W^T with float32's error, differentiable by x alone.

    Args:
        x: (..., inputs). weight: (outputs, inputs). of: the pieces of x.
    """
    found: Tensor = _Product.apply(x, weight, of)  # type: ignore[no-untyped-call]
    return found.view(*x.shape[:-1], -1)


class _Product(torch.autograd.Function):
    """:func:`_product`, as (n, outputs)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, of: Pieces) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.shape = x.shape
        return _multiplied(of, weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return _multiplied(pieces(gradients[0]), weight).view(ctx.shape), None, None


def _multiplied(of: Pieces, matrix: Tensor) -> Tensor:
    if len(of) == 1:
        return of[0] @ matrix
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return (of[0] @ matrix).addmm_(of[1], matrix)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
