"""Typed results of verbs; ``as_dict`` returns the keys of the command line's ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class _Result:
    def as_dict(self: Any) -> dict[str, Any]:
        """Return the result as ``--json`` prints it."""
        return {
            field.name: str(value) if isinstance(value, Path) else value
            for field in dataclasses.fields(self)
            for value in (getattr(self, field.name),)
        }


@dataclasses.dataclass(frozen=True)
class Trained(_Result):
    """A training run.

    Attributes:
        steps: steps of the state. total_steps: requested steps; more if patience ended the run.
        losses: loss of each step. engine: engine of the last step.
        step_seconds_median, peak_rss_mb, peak_anonymous_mb: of this call; None without steps or if
            the system does not report the value.
        state: folder of the state.
        examples: number of examples. shortened: number of those that exceed the maximum length.
        evaluations: validation results with step, loss, accuracy, token_accuracy and margin.
            best_step: the step with the lowest loss; None if no step was evaluated.
    """

    steps: int
    total_steps: int
    engine: str
    losses: list[float]
    step_seconds_median: float | None
    peak_rss_mb: float | None
    peak_anonymous_mb: float | None
    state: Path
    examples: int
    shortened: int
    evaluations: list[dict[str, Any]]
    best_step: int | None


@dataclasses.dataclass(frozen=True)
class Evaluated(_Result):
    """Result of an evaluation.

    Attributes:
        loss: mean over the examples. accuracy: share with the right choice as the likeliest one, or
            with the chosen response preferred; None without choices.
        token_accuracy: share of labels that equal the likeliest token.
        margin: mean preference margin (docs/preferences.md); None unless the loss compares pairs.
        examples: number of examples. shortened: number of those that exceed the maximum length.
        exact_match, f1: SQuAD scores of greedy completions, 0 to 1; None if not requested.
    """

    loss: float
    accuracy: float | None
    token_accuracy: float
    margin: float | None
    examples: int
    shortened: int
    exact_match: float | None = None
    f1: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as ``--json`` prints it, without scores that were not requested."""
        generated = ("exact_match", "f1")
        found = super().as_dict()
        return {key: found[key] for key in found if key not in generated or found[key] is not None}


@dataclasses.dataclass(frozen=True)
class Generated(_Result):
    """A generated completion.

    Attributes:
        text: completion up to a stop string. tokens: generated tokens without the end token.
        prompt_tokens: number of prompt tokens.
        stop: why it ended: eos, length, string or caller.
        prefill_tokens_per_second, decode_tokens_per_second: for the prompt; after the first token.
        peak_anonymous_mb: of this process during generation; None if the system does not report it.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    stop: str
    prefill_tokens_per_second: float | None
    decode_tokens_per_second: float | None
    peak_anonymous_mb: float | None


@dataclasses.dataclass(frozen=True)
class Parity(_Result):
    """Comparison of the session with the method's reference (docs/cli.md defines the errors).

    Attributes:
        passed: whether every error is within its bound. steps: number of compared steps.
        max_relative_*: largest errors; None if the method does not have the quantity.
        difference_resolution: the smallest difference of losses that the bundle's arithmetic resolves.
        bounds: bound of each error. runner: program that ran the session's side.
    """

    passed: bool
    steps: int
    max_relative_loss_error: float
    max_relative_state_error: float
    max_relative_gradient_error: float | None
    max_relative_difference_error: float | None
    difference_resolution: float | None
    bounds: Mapping[str, float]
    runner: str


@dataclasses.dataclass(frozen=True)
class Exported(_Result):
    """Files that were exported for another tool.

    Attributes:
        adapter: the folder. format: its kind. steps: of the state. tensors: count. bytes: in total.
    """

    adapter: Path
    format: str
    steps: int
    tensors: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Imported(_Result):
    """A state created from an adapter.

    Attributes:
        state: the folder. format: the adapter's kind. tensors: number read.
    """

    state: Path
    format: str
    tensors: int
