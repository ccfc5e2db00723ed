"""The verb ``plan``: the model that a configuration describes, captured once, and estimates over it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zoexport.compiler import graphs
from zoexport.compiler.plan import Plan, plan, with_recipe
from zoexport.core.config import as_dict, fields, with_values
from zoexport.core.errors import ConfigError
from zoexport.core.features import Feature
from zoexport.core.graph import TrainingGraph
from zoexport.core.progress import Progress
from zoexport.core.recipes import StrPath, read_recipe
from zoexport.core.wording import worded
from zoexport.methods import methods
from zoexport.tools.compiling import compiling
from zoexport.tools.estimate import PROCESSES, Estimate, estimate

_MEGABYTE = 1e6
_TOKENS, _WIDTH, _MEASURED_SECONDS = 256, 1024, 0.5
"""The product that is timed: its rows, the size of its square weights, and for how long."""
_ANY_ROOM = 1 << 30
"""MB that hold what all layers of any model keep."""
_LEAST_TOKENS = 64
"""Shorter rows hold too little of an example to learn from."""
_WHY = (
    "First order needs far fewer steps, often 10 to 100 times: its gradient is exact, while a zeroth-order step"
    " learns one number a query about all trainable values together."
)
_LESS = (
    "Smaller batch, max_length or lora.r take less; otherwise choose a smaller model,"
    " or a smaller group of lora.target_modules."
)


def plan_training(
    model: str,
    *,
    method: str | None,
    target: str,
    settings: Mapping[str, str],
    recipe: StrPath | None = None,
    budget_mb: float | None = None,
    process: str = "train",
    threads: int = 4,
    labels: int | None = None,
    ram_mb: float | None = None,
    disk_mb_s: float | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Estimate the cost of compiling and training a model without its weights.

    Args:
        model: as for ``compile``; a directory needs no more than config.json.
        method, target, settings, recipe: as for ``compile``.
        budget_mb: the anonymous memory that the training process may take.
        process: which that is, a key of :data:`PROCESSES`.
        threads: that compute.
        labels: tokens of a batch that are predicted; None: all. Operations of programs of layers depend on it.
        ram_mb: memory that the process may take, files that it maps included: what of the weights does not fit is read
            from the disk in every step.
        disk_mb_s: what the disk reads in a second, with ``ram_mb``.
        progress: called with the name of each phase.

    Returns:
        The keys of ``plan --json`` (docs/reference/cli.md).

    Raises:
        ZoExportError: one clear error.
    """
    if budget_mb is not None and not budget_mb > 0:
        raise ConfigError(
            "--budget-mb",
            found=f"{budget_mb:g}",
            expected="megabytes above 0",
            fix="Give the memory that training may take, such as --budget-mb 200.",
        )
    _check_disk(ram_mb, disk_mb_s)
    given = {**read_recipe(recipe).settings, **settings}
    planned = with_recipe(method, target, settings, recipe)
    planner = _Planner(model, planned, threads, labels, progress)
    graph = planner.graph(planned)
    found = planner.estimate(planned, graph)
    compile_parts = planner.compiling(planned, graph)
    needed = found.peak_anonymous(PROCESSES[process]) / _MEGABYTE
    fits, fitting = None, []
    if budget_mb is not None:
        fits = needed <= budget_mb
        fitting = _that_fit(planner, planned, given, budget_mb, process)
    return {
        "model": model,
        "method": planned.method.name,
        "target": target,
        "settings": as_dict(planned.config),
        "process": process,
        "threads": threads,
        **_figures(found, process),
        "seconds_per_step": _seconds(found.flops, planned.config.activations, threads),
        "compile_peak_anonymous_mb": None
        if compile_parts is None
        else _megabytes(sum(compile_parts.values())),
        "anonymous_mb_by_process": {
            name: _megabytes(found.peak_anonymous(other)) for name, other in PROCESSES.items()
        },
        "breakdown": _breakdown(found, process, compile_parts),
        **({} if ram_mb is None else _disk(found, process, ram_mb, disk_mb_s)),
        **({} if ram_mb is None else _kept(planner, planned, process, ram_mb)),
        "budget_mb": budget_mb,
        "fits": fits,
        **({} if budget_mb is None else {"options": fitting}),
        "advice": worded(advice(planned.method.sooner, planned.config.first_order, fits, fitting)),
    }


def _check_disk(ram_mb: float | None, disk_mb_s: float | None) -> None:
    for name, value in (("--ram", ram_mb), ("--disk-mb-s", disk_mb_s)):
        if value is not None and not value > 0:
            raise ConfigError(
                name, found=f"{value:g}", expected="a number above 0", fix="Give megabytes."
            )
    if disk_mb_s is not None and ram_mb is None:
        raise ConfigError(
            "--disk-mb-s",
            found="no --ram",
            expected="both, as a step reads from the disk what memory does not hold",
            fix="Add --ram MB, the memory that training may take, mapped files included.",
        )


def _that_fit(
    planner: _Planner,
    planned: Plan,
    given: Mapping[str, Any],
    budget_mb: float,
    process: str,
) -> list[dict[str, Any]]:
    """Return the candidates that fit, preferred ones first; of each method the largest alone."""
    fitting: list[dict[str, Any]] = []
    for candidate in options(planned, given):
        name = candidate.plan.method.name
        if any(other["method"] == name for other in fitting):
            continue
        graph = planner.graph(candidate.plan)
        figures = _figures(planner.estimate(candidate.plan, graph), process)
        if figures["peak_anonymous_mb"] <= budget_mb:
            order = {"first_order": candidate.plan.config.first_order}
            fitting.append({"method": name, "settings": candidate.changes, **order, **figures})
    return fitting


class _Planner:
    """Plans variants over one captured graph."""

    def __init__(
        self,
        model: str,
        first: Plan,
        threads: int,
        labels: int | None,
        progress: Progress,
    ) -> None:
        from zoexport import models

        progress("reading the configuration", None)
        blank = models.blank(models.resolve(model, weights=False))
        self._model = blank.model
        if Feature.MODEL_OPERATORS in first.target.has:
            models.route_experts(blank.model)
        self._tokenizer = blank.tokenizer_bytes
        self._threads = threads
        self._labels = labels
        self._progress = progress
        length = graphs.capture_length(first, self._model)
        self._any_length = length is not None
        self._captured = graphs.captured(
            first, self._model, length or first.config.max_length, progress
        )
        self._footprints: dict[str, Any] = {}

    def graph(self, planned: Plan) -> TrainingGraph:
        """Return the graph after the method's passes, its rows at most as long as captured."""
        return graphs.sized_graph(planned, self._model, self._captured, self._progress)

    def estimate(self, planned: Plan, graph: TrainingGraph) -> Estimate:
        """Estimate the cost of training."""
        # Methods without gradients run the same programs over layers.
        programs = [(p.name, p.inputs, p.outputs) for p in graph.programs.values()]
        key = repr((planned.target.name, planned.config.compute, programs))
        if key not in self._footprints:
            found = planned.target.footprints(graph, planned.config, self._progress)
            self._footprints[key] = found
        return estimate(
            graph,
            self._footprints[key],
            as_dict(planned.config),
            tokenizer=self._tokenizer,
            threads=self._threads,
            labels=self._labels,
        )

    def compiling(self, planned: Plan, graph: TrainingGraph) -> dict[str, int] | None:
        """Return the peak memory of compiling in bytes, by part; None if unknown."""
        return compiling(
            planned.target.lowering_memory,
            graph,
            self._captured,
            planned.config.weights,
            any_length=self._any_length,
            tokenizer=self._tokenizer,
        )


def _figures(found: Estimate, process: str) -> dict[str, Any]:
    host = PROCESSES[process]
    return {
        "peak_anonymous_mb": _megabytes(found.peak_anonymous(host)),
        "peak_rss_mb": _megabytes(found.peak_rss(host)),
        "disk_mb": _megabytes(found.bundle + found.state),
        "flops_per_step": found.flops,
        "bytes_per_step": found.moved,
    }


def _seconds(flops: float, activations: str | None, threads: int) -> float:
    """Return the time of a step on this machine, within a factor of two, from a short measurement.

    The session's products were compared with PyTorch's float32 products on an AMD EPYC with two cores and AVX-512
    VNNI: SmolLM2-135M, 256 tokens, mebp 1.4 s at 191 GFLOP and prge 1.8 s at 573 GFLOP, where PyTorch had 165 GFLOP/s.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(min(threads, os.cpu_count() or 1))
    try:
        inputs, weights = torch.randn(_TOKENS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
        torch.mm(inputs, weights)
        began, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < _MEASURED_SECONDS:
            torch.mm(inputs, weights)
            count += 1
    finally:
        torch.set_num_threads(before)
    rate = count * 2 * _TOKENS * _WIDTH * _WIDTH / elapsed
    return round(flops / rate / (2.0 if activations == "int8" else 0.8), 3)


def _disk(
    found: Estimate, process: str, ram_mb: float, disk_mb_s: float | None
) -> dict[str, float | None]:
    """Return the MB of weights that a step reads from the disk, and the minimum time for it."""
    read = found.from_disk(int(ram_mb * _MEGABYTE), PROCESSES[process])
    seconds = None if disk_mb_s is None else round(read / _MEGABYTE / disk_mb_s, 3)
    return {
        "ram_mb": ram_mb,
        "from_disk_mb_per_step": _megabytes(read),
        "disk_seconds_per_step": seconds,
    }


def _kept(
    planner: _Planner, planned: Plan, process: str, ram_mb: float
) -> dict[str, dict[str, int]]:
    """Return the ``activation_cache_mb`` that fits into ``ram_mb``, if the setting exists."""
    if Feature.SAVED_PRODUCTS not in planned.target.has or "activation_cache_mb" not in as_dict(
        planned.config
    ):
        return {}

    def with_room(activation_cache_mb: int) -> Plan:
        config = with_values(planned.config, {"activation_cache_mb": activation_cache_mb})
        return dataclasses.replace(planned, config=config)

    graph = planner.graph(with_room(_ANY_ROOM))  # whose programs save, whatever was asked for

    def estimated(activation_cache_mb: int) -> Estimate:
        return planner.estimate(with_room(activation_cache_mb), graph)

    nothing = estimated(0)
    whole = -(-nothing.all_kept // int(_MEGABYTE))
    free = int(ram_mb * _MEGABYTE) - nothing.peak_rss(PROCESSES[process])
    fits = min(max(0, free) // int(_MEGABYTE), whole)
    return {
        "kept": {
            "activation_cache_mb": fits,
            "keep_mb_of_all_layers": whole,
            "flops_per_step": estimated(fits).flops,
            "flops_per_step_without": nothing.flops,
        }
    }


def _breakdown(
    found: Estimate, process: str, compile_parts: dict[str, int] | None
) -> dict[str, dict[str, float]]:
    host = PROCESSES[process]
    parts = {
        "anonymous": {"process": host.anonymous, **found.anonymous},
        "mapped": {"code": host.code, **found.mapped},
        "disk": {"bundle": found.bundle, "state": found.state, "scratch": found.scratch},
        **({} if compile_parts is None else {"compile": compile_parts}),
    }
    return {
        kind: {name: _megabytes(size) for name, size in sizes.items()}
        for kind, sizes in parts.items()
    }


def _megabytes(size: int) -> float:
    return round(size / _MEGABYTE, 1)


@dataclasses.dataclass(frozen=True)
class Option:
    """Candidate plan. ``changes``: settings to add to the given ones."""

    plan: Plan
    changes: dict[str, Any]


def options(planned: Plan, given: Mapping[str, Any]) -> Iterator[Option]:
    """Yield candidates by preference: first order before zeroth, then closeness to the request.

    Methods with a choice of granularity use ``layer``, which needs the least memory.

    Args:
        planned: what was asked for. given: its settings that the user gave, by key.
    """
    asked = as_dict(planned.config)
    everywhere = {
        key: value for key, value in given.items() if all(key in known for known in _keys())
    }
    for name in _by_preference(planned):
        own = given if name == planned.method.name else everywhere
        for batch, max_length in _shapes(asked["batch_size"], asked["max_length"]):
            changes: dict[str, Any] = {"max_length": max_length, "batch_size": batch}
            known = fields(methods.get(name).config)
            if "granularity" in known and asked.get("granularity", "model") == "model":
                changes["granularity"] = "layer"
            try:
                candidate = plan(name, planned.target.name, {**own, **changes})
            except ConfigError:  # a setting that this method does not take
                continue
            if as_dict(candidate.config).get("mask", "") is None and own is everywhere:
                continue  # needs a file that the user did not speak of
            yield Option(candidate, changes)


def _keys() -> list[set[str]]:
    """Keys of each method's settings, without the learning rate, which is another for each."""
    return [set(fields(methods.get(name).config)) - {"learning_rate"} for name in methods.names()]


def _by_preference(planned: Plan) -> list[str]:
    """Sort methods: first-order, the requested one, those that read weights once for all copies."""

    def rank(name: str) -> tuple[bool, bool, str]:
        config: Any = methods.get(name).config
        zeroth = not config.first_order
        return zeroth, name != planned.method.name, "" if config.together else name

    return sorted(methods.names(), key=rank)


def _shapes(batch: int, max_length: int) -> Iterator[tuple[int, int]]:
    """Batch and length: first fewer rows, which ``gradient_accumulation_steps`` makes up for, then shorter ones."""
    yield batch, max_length
    if batch > 1:
        yield 1, max_length
    while max_length // 2 >= _LEAST_TOKENS:
        max_length //= 2
        yield 1, max_length


def advice(
    sooner: str, first_order: bool, fits: bool | None, options: Sequence[Mapping[str, Any]]
) -> str:
    """One to three sentences.

    Args:
        sooner: of the method that was asked for. first_order: whether it is. fits: None without a budget.
        options: what fits, preferred first.
    """
    found = _of_first_order(first_order, fits, options)
    fitting = bool(options and options[0]["first_order"])
    return f"{found} {sooner}" if sooner and not fitting else found


def _of_first_order(
    first_order: bool, fits: bool | None, options: Sequence[Mapping[str, Any]]
) -> str:
    """Return advice on whether first order fits and what it gains."""
    if fits is None:
        return (
            "First order: the fewest steps; --budget-mb N says whether it fits."
            if first_order
            else f"{_WHY} Plan it too, and choose a zeroth-order method where it does not fit."
        )
    best = options[0] if options else None
    if fits:
        if first_order:
            return f"It fits. {_WHY}"
        if best is not None and best["first_order"]:
            return f"It fits, but so does {_named(best)}, which is to be preferred. {_WHY}"
        return f"It fits; first order does not. {_WHY}"
    if best is None:
        return f"Nothing that was tried fits. {_LESS}"
    if best["first_order"]:
        return f"It does not fit; {_named(best)} does. {_WHY}"
    return f"It does not fit, and first order does not; {_named(best)} does. {_WHY} So expect many more steps."


def _named(option: Mapping[str, Any]) -> str:
    settings = " ".join(f"--set {key}={value}" for key, value in option["settings"].items())
    return f"--method {option['method']} {settings}".rstrip()
