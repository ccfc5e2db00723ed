"""Typed results of verbs; ``as_dict`` returns the keys of the command line's ``--json``.

The command line copies the attributes' descriptions into its help (``cli.keys``).
"""

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
        steps: number of steps of the state.
        total_steps: number of requested steps; more than steps if patience ended the run.
        engine: engine of the last step.
        losses: loss of each step of the state.
        step_seconds_median, peak_rss_mb, peak_anonymous_mb: time and memory of this call; None if
            no step ran or the system does not report the value.
        state: folder of the state.
        examples: number of examples.
        shortened: number of examples that exceed the maximum length.
        evaluations: list of validation results with step, loss, accuracy, token_accuracy and
            margin.
        best_step: step with the lowest validation loss; None if no step was evaluated.
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
        loss: mean loss of the examples.
        accuracy: share of examples whose right choice or chosen response has the highest score;
            None without choices.
        token_accuracy: share of label tokens that the model ranks first.
        margin: mean preference margin; None unless the loss compares pairs.
        examples: number of examples.
        shortened: number of examples that exceed the maximum length.
        exact_match, f1: SQuAD scores of greedy completions, 0 to 1; only if requested.
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
        text: completion up to a stop string.
        tokens: generated tokens without the end token, with the tokens of a stop string.
        prompt_tokens: number of prompt tokens.
        stop: reason for the end: eos, length, string or caller.
        prefill_tokens_per_second: speed of the prompt.
        decode_tokens_per_second: speed of the tokens after the first one.
        peak_anonymous_mb: anonymous memory of the process; None if the system does not report it.
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
    """Comparison of the session with the method's reference.

    Attributes:
        passed: whether every error is within its bound.
        steps: number of compared steps.
        max_relative_loss_error, max_relative_state_error: largest errors of the loss and of the
            trained values.
        max_relative_gradient_error: largest error of a gradient; None for zeroth-order methods.
        max_relative_difference_error: largest error of a difference of two losses beyond
            difference_resolution; None for first-order methods.
        difference_resolution: smallest difference of losses that the bundle's arithmetic resolves;
            None for first-order methods and for quantized activations of android-npu.
        bounds: bound of each error.
        runner: program that ran the session's side.
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
        adapter: folder or file that was written.
        format: format of the files.
        steps: number of steps of the state.
        tensors: number of tensors.
        bytes: total size.
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
        state: folder of the state.
        format: format of the adapter.
        tensors: number of tensors.
    """

    state: Path
    format: str
    tensors: int
