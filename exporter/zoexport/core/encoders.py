"""Masked language models (encoders): how they are detected, and how they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoexport.core.errors import ConfigError
from zoexport.core.features import Feature
from zoexport.core.settings import TrainingSettings
from zoexport.core.tasks import MASKED, task_of

if TYPE_CHECKING:
    import torch

    from zoexport.core.target import Method, Target


def is_masked(model: object) -> bool:
    """Return whether a model is a masked language model (bidirectional attention)."""
    return task_of(type(model)) == MASKED


def pad_token(model: Any) -> int | None:
    """Return the padding token of a masked language model; None for a causal model."""
    return int(model.config.pad_token_id) if is_masked(model) else None


def refuse_masked(model: Any, where: str, found: str, fix: str) -> None:
    """Refuse a masked language model if only causal models make sense.

    Args:
        model: transformers model, possibly causal. found: what it is incompatible with.

    Raises:
        ConfigError: it is masked.
    """
    if is_masked(model):
        raise ConfigError(
            where,
            found=f"{found}, and the masked language model {type(model).__name__}",
            expected="a causal language model, or other settings",
            fix=fix,
        )


def check_encoder(model: Any, method: Method, target: Target, config: TrainingSettings) -> None:
    """Refuse a masked language model that the method or target does not support.

    Raises:
        ConfigError: it is one.
    """
    if Feature.ENCODERS not in target.has:
        refuse_masked(
            model,
            f"target {target.name}",
            "a target on which none was tried",
            "Compile for host, android-cpu, ios-mlx, or android-gpu with its own engine.",
        )
    if not config.staged:
        refuse_masked(
            model,
            f"method {method.name}",
            "one program of the whole model",
            "Add --set granularity=layer.",
        )
    if config.pack:
        refuse_masked(
            model,
            "setting pack=true",
            "texts that share rows",
            "Leave pack out: every token of such a model sees the whole row.",
        )
    if config.perturbs_weights:
        refuse_masked(
            model,
            f"method {method.name}",
            "programs that perturb the weights of all linear layers, but not of one in the output head",
            "Train adapters, layer by layer (train=lora, or another method).",
        )


def model_inputs(model: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """Return a transformers model's inputs for right-padded tokens int64 (rows, length).

    A causal model attends to no token to the right. An encoder gets the attention mask that its
    tokens imply, and segment 0, as transformers' tokenizers return for one text.
    """
    pad = pad_token(model)
    if pad is None:
        return {"input_ids": tokens, "use_cache": False}
    import torch

    inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": tokens.ne(pad).long()}
    if getattr(model.config, "type_vocab_size", 0):
        inputs["token_type_ids"] = torch.zeros_like(tokens)
    return inputs
