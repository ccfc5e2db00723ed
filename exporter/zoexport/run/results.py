"""What verbs return, typed; ``as_dict`` has the keys of the command line's ``--json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class _Result:
    def as_dict(self: Any) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            field.name: str(value) if isinstance(value, Path) else value
            for field in dataclasses.fields(self)
            for value in (getattr(self, field.name),)
        }


@dataclasses.dataclass(frozen=True)
class Trained(_Result):
    """A training run.

    Attributes:
        steps: that the state has. total_steps: that were asked for; more than ``steps`` if patience ended the run.
        losses: of each step. engine: of the last step.
        step_seconds_median, peak_rss_mb, peak_anonymous_mb: of this call; None where it took no step, or the system
            does not say.
        state: the state's folder.
        examples: in the data. shortened: those of them longer than a row.
        evaluations: of the held-out examples, each with step, loss, accuracy, token_accuracy and margin. best_step:
            the steps of the one with the lowest loss; None without evaluations after steps.
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
    """An evaluation.

    Attributes:
        loss: mean over the examples. accuracy: share whose right choice is the likeliest, or whose chosen answer is
            preferred; None without choices.
        token_accuracy: share of labels that are the likeliest token.
        margin: mean of by how much the chosen answer is preferred (docs/preferences.md); None but for pairs' losses.
        examples: in the data. shortened: those of them longer than a row.
        exact_match, f1: of greedy answers, by SQuAD's rules, 0 to 1; None where they were not asked for.
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
        """As ``--json`` prints it: without what was not asked for."""
        generated = ("exact_match", "f1")
        found = super().as_dict()
        return {key: found[key] for key in found if key not in generated or found[key] is not None}


@dataclasses.dataclass(frozen=True)
class Generated(_Result):
    """What follows a prompt.

    Attributes:
        text: what follows, up to a stop string. tokens: that came; an end token is not among them.
        prompt_tokens: of the prompt.
        stop: eos, length, string or caller.
        prefill_tokens_per_second, decode_tokens_per_second: of the prompt, and of the tokens after the first.
        peak_anonymous_mb: of this process meanwhile; None where the system does not say.
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
    """The session beside the method's reference (docs/cli.md says what each error is relative to).

    Attributes:
        passed: whether every error is within its bound. steps: compared.
        max_relative_*: the largest errors; None of what the method has not.
        difference_resolution: the smallest difference of losses that the bundle's arithmetic resolves.
        bounds: by error. runner: what ran the session's side.
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
    """What was written for another tool.

    Attributes:
        adapter: the folder. format: its kind. steps: that the state has. tensors: written. bytes: of all files.
    """

    adapter: Path
    format: str
    steps: int
    tensors: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Imported(_Result):
    """A state made of an adapter.

    Attributes:
        state: the folder. format: the adapter's kind. tensors: read.
    """

    state: Path
    format: str
    tensors: int
