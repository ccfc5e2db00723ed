"""Settings that every method has, with the defaults of the zeroth-order ones, and those of LoRA."""

from __future__ import annotations

import abc
import dataclasses
from typing import ClassVar

from zoexport.core.config import MOST_WHOLE, setting
from zoexport.core.errors import Problem
from zoexport.core.features import Feature
from zoexport.core.lora_scaling import LoraScaling

READING = ("loss", "pack", "append_eos", "mask_history")
"""Settings that the reading of data depends on."""


@dataclasses.dataclass(frozen=True)
class TrainingSettings(abc.ABC):
    """Settings of all methods, for ``--set`` and recipes."""

    max_length: int = setting(
        64, at_least=2, help="maximum tokens per example; longer examples are truncated"
    )
    batch_size: int = setting(4, at_least=1, phase="run", help="examples per batch")
    weights: str = setting(
        "int4", choices=("fp32", "int8", "int4"), help="dtype of the frozen weights"
    )
    activations: str | None = setting(
        None,
        choices=("fp32", "int8", "int16"),
        help="dtype of the inputs of quantized layers; the default depends on method and target",
    )
    compute: str | None = setting(
        None,
        choices=("fp32", "fp16", "bf16"),
        help="dtype of the arithmetic, if the target supports several",
    )
    soc: str | None = setting(
        None,
        help="chips to compile for, if the target needs them (android-npu: SM8650,SM8750; auto: the connected phone's)",
    )
    group_size: int = setting(32, at_least=1, help="number of int4 weights that share a scale")
    scale_steps: bool | None = setting(
        None,
        help="limit int4 scales to 1 to 16 times one step per row, which integer arithmetic of an NPU requires",
    )
    gradient_accumulation_steps: int = setting(
        1, at_least=1, phase="run", help="batches per update"
    )
    hidden_state_cache_mb: int = setting(
        0,
        at_least=0,
        phase="process",
        help="size in MB of a file that caches hidden states of the layers below the first trained one",
    )
    learning_rate: float = setting(2e-3, above=0, phase="run", help="learning rate")
    lr_scheduler_type: str = setting(
        "constant",
        choices=("constant", "linear", "cosine"),
        phase="run",
        help="learning rate schedule",
    )
    warmup_steps: int = setting(
        0,
        at_least=0,
        phase="run",
        help="steps of linear warmup",
    )
    loss: str = setting(
        "full",
        choices=("full", "choices", "dpo", "orpo"),
        phase="run",
        help="cross-entropy over the vocabulary (full) or over an example's choices, or a loss of preference pairs",
    )
    dpo_beta: float = setting(
        0.1,
        key="dpo.beta",
        above=0,
        phase="run",
        help="beta of loss=dpo",
    )
    orpo_beta: float = setting(
        0.1,
        key="orpo.beta",
        above=0,
        phase="run",
        help="weight of the odds ratio in loss=orpo",
    )
    choices: str = setting(
        "sum",
        choices=("sum", "mean"),
        phase="run",
        help="compare choices by the sum of their token log-probabilities, or normalized by length",
    )
    pack: bool = setting(
        False,
        phase="run",
        help="pack texts into rows of max_length tokens; long texts are split instead of truncated",
    )
    append_eos: bool = setting(
        True, phase="run", help="append the end token to texts and completions"
    )
    mask_history: bool = setting(
        False,
        phase="run",
        help="train on the last answer of a conversation only",
    )
    seed: int = setting(
        0, at_least=0, at_most=MOST_WHOLE, phase="run", help="seed of adapters, noise and batches"
    )
    generate: bool = setting(True, help="include programs that generate text")
    generate_context: int = setting(
        1024,
        key="generate.context",
        at_least=16,
        help="maximum tokens of a prompt and its completion",
    )
    generate_activations: str = setting(
        "fp32",
        key="generate.activations",
        choices=("fp32", "int8"),
        help="dtype of the inputs of quantized layers in generation; int8 is faster and less exact",
    )

    first_order: ClassVar[bool] = False
    """Whether the method trains by gradients; the others have projected gradients in their records."""
    together: ClassVar[bool] = False
    """Whether all perturbed copies pass a program before the next one runs, and are in memory at once."""

    rounds_layers: ClassVar[bool] = False
    """Whether inputs of quantized layers are rounded to int8 where a target can and the user says nothing else."""

    @property
    @abc.abstractmethod
    def trained(self) -> str:
        """Kind of parameters that the method trains, by its name in ``zoexport.trained``."""

    @property
    def staged(self) -> bool:
        """True if programs compute single layers over mapped weights, not the whole model."""
        return True

    @property
    def rounds_inputs(self) -> bool:
        """True if linear layers quantize inputs, calibrated on the model's own activations."""
        return False

    @property
    def measures_directions(self) -> bool:
        """True if adapters are initialized from the model's own activations."""
        return False

    @property
    def rounding(self) -> str:
        """Row of ``core.tolerances`` that bounds the differences between device and reference."""
        if self.activations not in (None, "fp32"):
            return str(self.activations)
        return self.compute or "fp32"

    @property
    def needs(self) -> dict[Feature, str]:
        """Target features that these settings need for any trained kind, and their causes."""
        chosen = "granularity" in {field.name for field in dataclasses.fields(self)}
        feature = Feature.STAGES if self.staged else Feature.WHOLE
        found = {feature: "setting granularity" if chosen else "the method"}
        if self.generate and self.generate_activations == "int8":
            found[Feature.ROUNDED_PRODUCTS] = "setting generate.activations"
        return found

    @property
    def perturbs_weights(self) -> bool:
        """True if programs perturb the weights of all linear layers except the output head."""
        return False

    @property
    def modules(self) -> tuple[str, str]:
        """Trained linear layers, as arguments of ``models.adapter_targets``."""
        return "all-linear", "all"

    @property
    def ranks(self) -> LoraScaling | None:
        """Ranks of the adapters; None if other parameters are trained."""
        return None

    def problems(self) -> list[Problem]:
        """Return the reasons why no target can run these settings."""
        found = []
        if self.pack and self.loss != "full":
            reason = f"loss={self.loss} compares answers, which have rows of their own"
            fix = "Leave pack out, or train with loss=full."
            found.append(Problem("setting pack=true", reason, fix))
        begins_at_first = {"all", "0"} & {part.strip() for part in self.modules[1].split(",")}
        if self.hidden_state_cache_mb and (not self.staged or begins_at_first):
            where = f"setting hidden_state_cache_mb={self.hidden_state_cache_mb}"
            reason = "no program of a layer lies below the first that is trained"
            fix = "Leave it out, or give lora.layers_to_transform=last:K, and granularity=layer if it is a setting."
            found.append(Problem(where, reason, fix))
        return found


@dataclasses.dataclass(frozen=True)
class LoraSettings(TrainingSettings):
    """Settings of methods with LoRA adapters."""

    @property
    def trained(self) -> str:
        """Adapters."""
        return "lora"

    lora_r: int = setting(16, key="lora.r", at_least=1, help="rank of an adapter")
    lora_alpha: float = setting(
        16.0, key="lora.alpha", above=0, help="scale of an adapter: alpha / rank"
    )
    lora_use_rslora: bool = setting(
        False,
        key="lora.use_rslora",
        help="scale adapters by alpha / sqrt(rank) instead",
    )
    lora_rank_pattern: dict[str, int] = setting(
        {},
        key="lora.rank_pattern",
        at_least=1,
        help="ranks of single modules, as PEFT's rank_pattern",
    )
    lora_alpha_pattern: dict[str, float] = setting(
        {},
        key="lora.alpha_pattern",
        above=0,
        help="alphas of single modules, as PEFT's alpha_pattern",
    )
    lora_init_weights: str = setting(
        "random",
        key="lora.init_weights",
        choices=("random", "activations"),
        help="initial A: normal random numbers, or the leading directions of the layer's inputs on a text",
    )
    lora_dropout: float = setting(
        0.0,
        key="lora.dropout",
        at_least=0,
        below=1,
        help="dropout probability of an adapter's inputs",
    )
    lora_target_modules: str = setting(
        "attention",
        key="lora.target_modules",
        help="layers with adapters: attention (query and value), all-linear, or names",
    )
    lora_layers_to_transform: str = setting(
        "all",
        key="lora.layers_to_transform",
        help="decoder layers with adapters: all, last:K, or indices from 0",
    )

    @property
    def needs(self) -> dict[Feature, str]:
        """Features that all methods need, and dropout if it is on."""
        drops = {Feature.DROPOUT: "setting lora.dropout"} if self.lora_dropout else {}
        return {**super().needs, **drops}

    @property
    def measures_directions(self) -> bool:
        """True if ``lora.init_weights`` is ``activations``."""
        return self.lora_init_weights == "activations"

    def problems(self) -> list[Problem]:
        """Return conflicts: dropout without gradients, adapter settings without adapters."""
        found = super().problems()
        if self.measures_directions and self.trained not in ("lora", "adapter codes"):
            where = f"setting lora.init_weights={self.lora_init_weights}"
            reason = "the method trains no adapters"
            found.append(
                Problem(
                    where, reason, "Leave lora.init_weights out, or train adapters (train=lora)."
                )
            )
        if not self.lora_dropout or (self.first_order and self.trained == "lora"):
            return found
        reason = (
            "losses that a zeroth-order method subtracts differ by a perturbation, which dropout would hide"
            if self.trained == "lora"
            else "the method trains no adapters of floats"
        )
        where = f"setting lora.dropout={self.lora_dropout:g}"
        fix = "Leave lora.dropout out, or train by backpropagation."
        return [*found, Problem(where, reason, fix)]

    @property
    def scaling(self) -> LoraScaling:
        """Ranks and scales of the adapters."""
        return LoraScaling(
            self.lora_r,
            self.lora_alpha,
            self.lora_use_rslora,
            self.lora_rank_pattern,
            self.lora_alpha_pattern,
        )

    @property
    def modules(self) -> tuple[str, str]:
        """The layers with adapters."""
        return self.lora_target_modules, self.lora_layers_to_transform

    @property
    def ranks(self) -> LoraScaling | None:
        """Ranks of the adapters; None if other parameters are trained."""
        return self.scaling if self.trained in ("lora", "adapter codes") else None
