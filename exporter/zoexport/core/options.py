"""Options of the session's calls (``session.h`` and ``job.h`` of runtime_ops), one dataclass per kind.

:mod:`zoexport.tools.settings_schema` writes them to ``graphs/schema/settings.schema.json``, against which the C++
library checks what a host passes. A field whose default is None has no default there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from zoexport.core.config import MOST_WHOLE, setting

MOST_TOKENS = (1 << 31) - 1
"""Tokens of a row, and of a vocabulary, at most."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Options of ``zo_bundle_manifest``."""

    trusted_keys: list[str] | None = setting(
        None,
        help="minisign public keys; one of them must have signed the bundle; absent: any bundle opens",
    )


@dataclasses.dataclass(frozen=True)
class Unpack(Manifest):
    """Options of ``zo_bundle_unpack``."""

    replace: bool = setting(
        False, help="replace what is at the folder, once the bundle is complete"
    )


@dataclasses.dataclass(frozen=True)
class Tokenizer(Manifest):
    """Options of ``zo_tokenizer_open``."""

    verify: bool = setting(
        True,
        help="hash files before they are used; sizes are always compared, and keys always verify",
    )


@dataclasses.dataclass(frozen=True)
class Uncompiled:
    """Options of ``zo_tokenizer_parse``."""

    max_length: int = setting(
        None, at_least=2, at_most=MOST_TOKENS, help="tokens of the longest example"
    )
    vocab_size: int = setting(
        None, at_least=1, at_most=MOST_TOKENS, help="size of the model's vocabulary"
    )
    masked: bool = setting(False, help="examples are prompts with a mask token")
    text: dict[str, Any] = setting(None, help="member text of the manifest")


@dataclasses.dataclass(frozen=True)
class Open(Tokenizer):
    """Options of ``zo_session_open`` and of the sessions of a job."""

    threads: int = setting(
        0,
        at_least=0,
        at_most=1024,
        help="compute threads; 0: the engine's choice. ExecuTorch shares one pool among all sessions of a process",
    )
    engine: str | None = setting(
        None, help="engine or fallback of the manifest; absent: the manifest's engine"
    )
    cache: str | None = setting(
        None, help="folder of a GPU's shaders; absent: the user's cache; empty: they are not kept"
    )
    kernel_times: bool = setting(False, help="measure kernels if the engine and the device can")


@dataclasses.dataclass(frozen=True)
class Attach:
    """Options of ``zo_session_attach``."""

    read_only: bool = setting(False, help="the state must exist, is not locked and not written")
    seed: int | None = setting(
        None,
        at_least=0,
        at_most=MOST_WHOLE,
        help="seed of a new state, and must equal that of an existing one; absent: the state's or the bundle's",
    )
    recover: bool = setting(
        False, help="continue from the last good record of a damaged log, and keep a copy of it"
    )
    change_settings: bool = setting(
        False,
        help="continue with other settings or examples than the run's; the state records them",
    )
    last: bool = setting(
        False, help="with read_only: weights of the last step, also if the run keeps its best"
    )


@dataclasses.dataclass(frozen=True)
class Validation:
    """When to evaluate during training, and what to keep; absent: as the run has it."""

    eval_every: int | None = setting(
        None,
        at_least=1,
        help="steps between evaluations; default of a new run: a tenth of all steps",
    )
    patience: int | None = setting(
        None,
        at_least=1,
        help="stop after this many evaluations without a lower loss; default of a new run: never",
    )
    keep: str | None = setting(
        None,
        choices=("best", "last"),
        help="weights that the state provides: best evaluation (default of a new run) or last step",
    )


@dataclasses.dataclass(frozen=True)
class Train(Validation):
    """Options of ``zo_session_train``."""

    steps: int = setting(
        None,
        at_least=0,
        at_most=MOST_WHOLE,
        help="total steps, including earlier calls",
    )


@dataclasses.dataclass(frozen=True)
class Chat:
    """Options of ``zo_tokenizer_chat``."""

    messages: list[dict[str, Any]] = setting(
        None,
        help="messages with role and content, and other keys that the chat template uses",
    )
    tools: list[dict[str, Any]] | None = setting(
        None, help="tools for the chat template, as JSON schemas"
    )
    reply: bool = setting(True, help="end where the assistant's response begins")


@dataclasses.dataclass(frozen=True)
class Generate:
    """Options of ``zo_session_generate``."""

    prompt: str | None = setting(None, help="text to continue")
    tokens: list[int] | None = setting(
        None, help="tokens to continue, fewer than the bundle's context"
    )
    messages: list[dict[str, Any]] | None = setting(
        None, help="a conversation that the assistant continues, as in chat"
    )
    tools: list[dict[str, Any]] | None = setting(
        None, help="tools for the chat template, as JSON schemas"
    )
    max_new_tokens: int = setting(128, at_least=1, help="maximum new tokens")
    stop_tokens: list[int] | None = setting(
        None, help="end tokens; default: those of the bundle and its chat template"
    )
    stop: list[str] | None = setting(None, help="stop strings; the text ends before the first one")
    temperature: float = setting(0.0, at_least=0, help="0 is greedy decoding")
    top_k: int = setting(0, at_least=0, help="sample from the k most likely tokens; 0: all")
    top_p: float = setting(
        1.0,
        at_least=0,
        at_most=1,
        help="sample from the smallest set of this probability; 0: the most likely token",
    )
    min_p: float = setting(
        0.0, at_least=0, at_most=1, help="least probability, relative to the most likely token"
    )
    repetition_penalty: float = setting(1.0, above=0, help="divides logits of tokens seen before")
    seed: int = setting(0, at_least=0, at_most=MOST_WHOLE, help="seed of the sampling")
    untrained: bool = setting(False, help="use the bundle's own weights")
    adapter: str | None = setting(None, help="name of a loaded adapter to use instead of the run")
    keep: bool = setting(
        False,
        help="keep the caches, so that a longer prompt with the same beginning continues there",
    )
    sliding: bool = setting(
        False, help="continue past the context over the last part of the tokens"
    )


@dataclasses.dataclass(frozen=True)
class Export:
    """Options of ``zo_session_export_adapter``."""

    format: str = setting(
        "peft", choices=("peft", "gguf"), help="a folder for PEFT, or a GGUF file"
    )
    outtype: str = setting(
        "f32",
        choices=("f32", "f16", "q8_0"),
        help="dtype of a GGUF file; rows of q8_0 that are no multiple of 32 are f16",
    )
    replace: bool = setting(False, help="replace what is at the path, once all is written")


@dataclasses.dataclass(frozen=True)
class Adapter(Export):
    """Options of ``zo_adapter_write`` and ``zo_adapter_read``."""

    description: str | None = setting(None, help="PEFT: the text of adapter_config.json")
    architecture: str | None = setting(None, help="GGUF: llama.cpp's name of the architecture")
    base_model: str = setting("", help="GGUF: name of the base model")
    alpha: float = setting(0.0, help="GGUF: llama.cpp scales each layer by alpha / rank")
    layers: list[dict[str, Any]] = setting(
        None,
        help="module, inputs, rank, outputs; GGUF: weight, and the order of outputs: pairs, or groups and width",
    )


@dataclasses.dataclass(frozen=True)
class Job(Validation):
    """Options of ``zo_job_start``: what to train."""

    bundle: str = setting(None, help="folder of the bundle")
    data: str = setting(None, help="training examples, as for zo_dataset_read")
    held_out: str | None = setting(
        None,
        help="validation examples, evaluated during training; absent: data, not during training",
    )
    steps: int = setting(
        None,
        at_least=1,
        at_most=MOST_WHOLE,
        help="total steps, including an earlier run",
    )
    settings: dict[str, Any] = setting({}, help="settings of the run, by key")
    evaluate: bool = setting(False, help="evaluate before the first step and after the last")
    engine: str | None = setting(
        None, help="engine of all runs of the request; absent: that of the job's options"
    )
    answer: str = setting(
        "ask",
        choices=("ask", "continue", "restart"),
        help="if the state has steps with other examples or settings, or all steps: refuse, continue, or start over",
    )


@dataclasses.dataclass(frozen=True)
class Limits:
    """Options of ``zo_job_run``: when a job waits. It continues below other limits than those at which it stops."""

    heat: int = setting(2, at_least=1, at_most=3, help="pause at this ZO_HEAT_* level and above")
    hottest: float = setting(42.0, help="pause above this temperature in degrees Celsius")
    cooled: float = setting(39.0, help="resume at or below this temperature")
    battery: float = setting(
        0.2,
        at_least=0,
        at_most=1,
        help="pause below this battery charge, unless the device charges",
    )
    free_bytes: int = setting(
        200_000_000, at_least=0, at_most=MOST_WHOLE, help="free disk space to keep, in bytes"
    )
    memory_bytes: int = setting(
        100_000_000, at_least=0, at_most=MOST_WHOLE, help="memory to leave to the app, in bytes"
    )
    poll_seconds: float = setting(30.0, above=0, help="seconds between checks while paused")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Settings of a session besides those of its method."""

    total_steps: int = setting(
        0,
        at_least=0,
        at_most=MOST_WHOLE,
        phase="run",
        help="length of the schedule, for steps that the host takes",
    )


KINDS: dict[str, type] = {
    "manifest": Manifest,
    "unpack": Unpack,
    "tokenizer": Tokenizer,
    "uncompiled": Uncompiled,
    "open": Open,
    "attach": Attach,
    "train": Train,
    "generate": Generate,
    "chat": Chat,
    "export": Export,
    "adapter": Adapter,
    "job": Job,
    "limits": Limits,
}
"""Kinds of options by their name in the schema; ``settings`` is the union of the methods' settings."""
