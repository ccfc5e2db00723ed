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

    max_length: int = setting(64, at_least=2, help="tokens a row; longer examples are shortened")
    batch_size: int = setting(
        4, at_least=1, phase="run", help="examples a step, and rows in one call"
    )
    weights: str = setting("int4", choices=("fp32", "int8", "int4"), help="frozen weights")
    activations: str | None = setting(
        None,
        choices=("fp32", "int8", "int16"),
        help="inputs of quantized layers; the method and the target choose",
    )
    compute: str | None = setting(
        None, choices=("fp32", "fp16", "bf16"), help="arithmetic, where the target has a choice"
    )
    soc: str | None = setting(
        None, help="the chip, where the target compiles for one (android-npu: SM8650)"
    )
    group_size: int = setting(32, at_least=1, help="int4 weights that share a scale")
    scale_steps: bool | None = setting(
        None,
        help="int4: a row's scales are 1 to 16 times one step, as integer products of an NPU need them",
    )
    gradient_accumulation_steps: int = setting(
        1, at_least=1, phase="run", help="batches for one update"
    )
    hidden_state_cache_mb: int = setting(
        0,
        at_least=0,
        phase="process",
        help="MB of a file for rows as they leave the layers below the first that is trained",
    )
    learning_rate: float = setting(2e-3, above=0, phase="run", help="learning rate")
    lr_scheduler_type: str = setting(
        "constant",
        choices=("constant", "linear", "cosine"),
        phase="run",
        help="how the rate changes over the steps",
    )
    warmup_steps: int = setting(
        0,
        at_least=0,
        phase="run",
        help="steps over which the rate rises to learning_rate, before its schedule",
    )
    loss: str = setting(
        "full",
        choices=("full", "choices", "dpo", "orpo"),
        phase="run",
        help="over the whole vocabulary, an example's choices, or pairs of a chosen and a rejected answer",
    )
    dpo_beta: float = setting(
        0.1,
        key="dpo.beta",
        above=0,
        phase="run",
        help="of loss=dpo: how much the log-ratio to the model without what is trained counts",
    )
    orpo_beta: float = setting(
        0.1,
        key="orpo.beta",
        above=0,
        phase="run",
        help="of loss=orpo: weight of the odds ratio beside the chosen answer's own loss",
    )
    choices: str = setting(
        "sum",
        choices=("sum", "mean"),
        phase="run",
        help="whether choices are compared by the sum of their log-probabilities, or length-normalized",
    )
    pack: bool = setting(
        False,
        phase="run",
        help="whether texts fill rows of max_length one after another, and long ones are divided and not cut",
    )
    append_eos: bool = setting(
        True, phase="run", help="whether texts and completions are learned with an end token"
    )
    mask_history: bool = setting(
        False,
        phase="run",
        help="whether of a conversation the last answer alone is learned, and not every one",
    )
    seed: int = setting(
        0, at_least=0, at_most=MOST_WHOLE, phase="run", help="of adapters, noise and batches"
    )
    generate: bool = setting(True, help="whether the bundle has programs that generate text")
    generate_context: int = setting(
        1024,
        key="generate.context",
        at_least=16,
        help="tokens of a prompt and what follows it, at most",
    )
    generate_activations: str = setting(
        "fp32",
        key="generate.activations",
        choices=("fp32", "int8"),
        help="inputs of quantized layers while generating; int8 is faster and less exact",
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

    lora_r: int = setting(16, key="lora.r", at_least=1, help="inner size of an adapter")
    lora_alpha: float = setting(
        16.0, key="lora.alpha", above=0, help="adapters are scaled by alpha / rank"
    )
    lora_use_rslora: bool = setting(
        False,
        key="lora.use_rslora",
        help="whether adapters are scaled by alpha / sqrt(rank)",
    )
    lora_rank_pattern: dict[str, int] = setting(
        {},
        key="lora.rank_pattern",
        at_least=1,
        help="other ranks by module, as PEFT's rank_pattern",
    )
    lora_alpha_pattern: dict[str, float] = setting(
        {},
        key="lora.alpha_pattern",
        above=0,
        help="other alphas by module, as PEFT's alpha_pattern",
    )
    lora_init_weights: str = setting(
        "random",
        key="lora.init_weights",
        choices=("random", "activations"),
        help="an adapter's first matrix: normal numbers, or the leading directions of its layer's inputs on text",
    )
    lora_dropout: float = setting(
        0.0,
        key="lora.dropout",
        at_least=0,
        below=1,
        help="share of an adapter's inputs that a step leaves out, at random",
    )
    lora_target_modules: str = setting(
        "attention",
        key="lora.target_modules",
        help="layers to adapt: attention (query and value), all-linear, or names",
    )
    lora_layers_to_transform: str = setting(
        "all", key="lora.layers_to_transform", help="decoder layers: all, last:K, or numbers from 0"
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
