"""Typed results of verbs; ``as_dict`` returns the keys of the command line's ``--json``.

The command line copies the attributes' descriptions into its help (``cli.keys``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class _Result:
    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Return the result whose ``as_dict`` is ``found``."""
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        return cls(
            **{
                key: Path(value) if "Path" in kinds[key] and value is not None else value
                for key, value in found.items()
            }
        )

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


@dataclasses.dataclass(frozen=True)
class Planned(_Result):
    """Estimated cost of compiling and training a model (docs/formats.md defines the numbers).

    Attributes:
        model, method, target, settings, process, threads: what was planned.
        peak_anonymous_mb, peak_rss_mb, disk_mb: memory and disk space in MB.
        flops_per_step, bytes_per_step: operations of a step, and its memory traffic in bytes.
        seconds_per_step: time of a step on this machine, within a factor of two.
        compile_peak_anonymous_mb: memory of compiling in MB; None if unknown.
        anonymous_mb_by_process, breakdown: memory by process; MB by cause.
        budget_mb: the given budget. fits: whether training fits it. options: methods and settings that fit;
            all three None without a budget.
        advice: one or more sentences.
        ram_mb: the given memory. from_disk_mb_per_step: MB of weights that a step reads from disk.
            disk_seconds_per_step: minimum seconds for it. kept: room for ``activation_cache_mb``; all None without it.
    """

    model: str
    method: str
    target: str
    settings: dict[str, Any]
    process: str
    threads: int
    peak_anonymous_mb: float
    peak_rss_mb: float
    disk_mb: float
    flops_per_step: float
    bytes_per_step: float
    seconds_per_step: float
    compile_peak_anonymous_mb: float | None
    anonymous_mb_by_process: dict[str, float]
    breakdown: dict[str, dict[str, float]]
    budget_mb: float | None
    fits: bool | None
    advice: str
    options: list[dict[str, Any]] | None = None
    ram_mb: float | None = None
    from_disk_mb_per_step: float | None = None
    disk_seconds_per_step: float | None = None
    kept: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as ``--json`` prints it, without estimates that were not requested."""
        left_out = set() if self.budget_mb is not None else {"options"}
        if self.ram_mb is None:
            left_out |= {"ram_mb", "from_disk_mb_per_step", "disk_seconds_per_step"}
        if self.kept is None:
            left_out.add("kept")
        return {key: value for key, value in super().as_dict().items() if key not in left_out}


@dataclasses.dataclass(frozen=True)
class Checked(_Result):
    """Statistics and problems of examples (docs/formats.md defines the counts).

    Attributes:
        examples: number of usable examples. usable: whether all of them can be used for training.
        shapes, labels, choices, right: examples by shape, completion, number of choices, and index of the right one.
        max_length: the bundle's. tokens: least, median, p95 and longest of an example; None without examples.
        rows: number of packed rows; None if not requested.
        duplicates, empty, shortened, joined, merged, last_turn_only: numbers of examples.
        shortened_at: locations of shortened examples. unused: columns that are not used.
        problem_count: number of problems. problems: the first of them, by where, found, expected and fix.
    """

    examples: int
    usable: bool
    shapes: dict[str, int]
    max_length: int
    tokens: dict[str, int] | None
    labels: dict[str, int] | None
    choices: dict[str, int]
    right: dict[str, int]
    duplicates: int
    empty: int
    rows: int | None
    shortened: int
    shortened_at: list[str]
    joined: int
    merged: int
    last_turn_only: int
    unused: list[str]
    problem_count: int
    problems: list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Reported(_Result):
    """A report page.

    Attributes:
        report: the HTML file. bytes: its size. runs: state, steps, best_step, step_seconds_median and
            peak_anonymous_mb of each run.
    """

    report: Path
    bytes: int
    runs: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Packed(_Result):
    """A bundle in one file.

    Attributes:
        bundle: the folder. bundle_id: its id. file: the packed file. bytes: its size.
        signed: whether the bundle has a signature.
    """

    bundle: Path
    bundle_id: str
    file: Path
    bytes: int
    signed: bool


@dataclasses.dataclass(frozen=True)
class Signed(_Result):
    """A signature of a bundle.

    Attributes:
        bundle: the folder. bundle_id: its id. signature: the file. public_key: the line that verifies it.
    """

    bundle: Path
    bundle_id: str
    signature: Path
    public_key: str


@dataclasses.dataclass(frozen=True)
class Simulated(_Result):
    """A simulated federation (docs/federation.md).

    Attributes:
        algorithm: the federated algorithm. rounds: number of rounds.
        losses: training loss of each round, None if no client replied.
        evaluations, accuracies: test loss and accuracy of each version; empty without test examples.
        bytes_up, bytes_down, upload_largest: traffic in bytes. refused: number of refused replies.
        unchanged: number of rounds that changed nothing. flops: operations of all clients; None if unknown.
        digest: hash of the model. model, state: its file and the folder; None if nothing was kept.
    """

    algorithm: str
    rounds: int
    losses: list[float | None]
    evaluations: list[float]
    accuracies: list[float | None]
    bytes_up: int
    bytes_down: int
    upload_largest: int
    refused: int
    unchanged: int
    flops: float | None
    digest: str
    model: Path | None
    state: Path | None
