"""``bench``: plan, compile what is missing, measure in rounds, summarize, write."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoexport.core import manifest as manifests
from zoexport.core.cores import usable_cores
from zoexport.core.errors import ConfigError
from zoexport.core.files import atomic_folder
from zoexport.core.native import runner_path
from zoexport.core.progress import Progress
from zoexport.session import Bundle
from zoexport.tools.bench import bundles as compiled
from zoexport.tools.bench import conditions, matrix, output, summary
from zoexport.tools.bench.eager_process import Baseline, baseline
from zoexport.tools.bench.matrix import BASELINES, Variant, first_order
from zoexport.tools.bench.rounds import Plan, measure
from zoexport.tools.bench.runner import LEARNING_RATE, Sample, run_steps
from zoexport.tools.bench.workload import examples_file


def bench(
    subjects: Sequence[str],
    *,
    name: str,
    changes: Mapping[str, Any],
    target: str,
    settings: Mapping[str, str],
    threads: int | None,
    plan: Plan,
    work: Path | None,
    folder: Path | None,
    force: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Measure a matrix of variants of one model, or existing bundles.

    Args:
        subjects: one MODEL, or folders of bundles of one model.
        name: name of the preset.
        changes: the user's axes, by field of ``matrix.Axes``; bundles: only ``labels``, ``eager``.
        target, settings: arguments of ``compile``.
        threads: threads of the engine and of PyTorch; None: the number of cores.
        plan: number of rounds and steps.
        work: folder of bundles and unfinished measurements; None: ``bench`` in the cache folder.
        folder: output folder of bench.json, bench.md and bench.png; None writes nothing.
        force: whether to replace an existing folder.
        progress: called with the current phase and its progress.

    Returns:
        The keys of ``bench --json``: results, ratios, conditions. ``random_weights`` of the conditions names the shape
        that the model has random weights of; None if the weights are its own.

    Raises:
        ZoExportError: something cannot be used, compiled or run; ``folder`` is then not written. Rounds that were
            completed are kept, and the same command goes on from there.
    """
    threads = threads or usable_cores()
    work = compiled.work_folder(work)
    runner_path()
    from zoexport import models

    with contextlib.ExitStack() as stack:
        written = None
        if folder is not None:
            output.check_can_draw(folder)
            written = stack.enter_context(atomic_folder(folder, replace=force))
        given = _given(subjects, changes)
        if given is None:
            variants = matrix.variants(matrix.preset(name), changes)
            source = subjects[0]
            if (
                len({variant.shape.max_length for variant in variants}) > 1
                and "max_length" not in changes
            ):
                variants = _within_positions(variants, source)
            bundles, model = _compile(variants, source, target, settings, work, progress)
        else:
            variants, bundles, model = given
        measured = {
            variant: path for variant, path in bundles.items() if variant.method not in BASELINES
        }
        started = _now()
        busy = conditions.load_average()
        content = {
            "grid": name if given is None else None,
            "model": model,
            "target": target if given is None else None,
            "settings": dict(settings),
            "threads": threads,
            "rounds": plan.rounds,
            "steps_at_most": plan.steps,
            "warmup": plan.warmup,
            "learning_rate": LEARNING_RATE,
            **conditions.machine(),
        }
        partial = work / "partial" / f"{_key(content, variants, measured)}.jsonl"
        turns = stack.enter_context(_turns(bundles, model, threads))
        rounds, resumed = measure(variants, plan, turns, partial, progress)
        result = {
            "results": summary.results(variants, rounds, measured),
            "ratios": summary.ratios(variants, rounds),
            "conditions": {
                "date": started,
                "finished": _now(),
                **content,
                "random_weights": models.shape_of(model["source"]),
                "resumed_rounds": resumed,
                "load_average": [busy, conditions.load_average()],
                "workload": conditions.WORKLOAD,
                "baselines": conditions.baselines({variant.method for variant in variants}),
                "memory": conditions.MEMORY,
            },
        }
        if written is not None:
            output.write(written, result)
    partial.unlink(missing_ok=True)
    return result


def _within_positions(variants: Sequence[Variant], model: str) -> list[Variant]:
    """Drop a preset's lengths that exceed the model's positions."""
    longest = max(variant.shape.max_length for variant in variants)
    from zoexport import models
    from zoexport.ir.capture import position_limit

    limit = position_limit(models.blank(models.resolve(model)).model)
    if limit is None or limit >= longest:
        return list(variants)
    return [variant for variant in variants if variant.shape.max_length <= limit]


_Given = tuple[list[Variant], dict[Variant, Path], dict[str, Any]]
"""Variants, their bundles (the baseline's: whose step it repeats), and what is known of the model."""


def _given(subjects: Sequence[str], changes: Mapping[str, Any]) -> _Given | None:
    """Return the variants of the bundles in ``subjects``; None if ``subjects`` is a model."""
    paths = [Path(subject) for subject in subjects]
    if len(paths) == 1 and not (paths[0] / manifests.FILE).is_file():
        return None
    for key in changes:
        if key not in ("labels", "eager"):
            raise ConfigError(
                f"option --{key.replace('_', '-')}",
                found="bundles, which have it compiled in",
                expected="a model to compile",
                fix="Leave it out, or give a MODEL.",
            )
    found: dict[Variant, Path] = {}
    models: dict[str, dict[str, Any]] = {}
    for path in paths:
        manifest = Bundle.open(path).manifest
        models[manifest["model"]["sha256"]] = manifest["model"]
        labels = changes.get("labels", matrix.LABELS)
        for variant in matrix.of_bundle(path, manifest, labels, changes.get("eager", False)):
            found[variant] = path
    if len(models) > 1:
        raise ConfigError(
            "bundles",
            found="several models: " + ", ".join(model["name"] for model in models.values()),
            expected="bundles of one model, so that their steps can be compared",
            fix="Measure each model on its own.",
        )
    return list(found), found, _about(next(iter(models.values())))


def _compile(
    variants: Sequence[Variant],
    model: str,
    target: str,
    settings: Mapping[str, str],
    work: Path,
    progress: Progress,
) -> tuple[dict[Variant, Path], dict[str, Any]]:
    stepped = [variant for variant in variants if variant.method not in BASELINES]
    compiled.check(stepped, target, settings)
    from zoexport import models

    source = models.resolve(model)
    hashed = (
        "the model" if source.kind != "shape" else "random weights, written where there are none"
    )
    progress(f"hashing {hashed}", None)
    digest = models.fingerprint(source)
    found: dict[Variant, Path] = {}
    for variant in stepped:
        found[variant] = compiled.bundle_of(
            variant,
            model=source.argument,
            model_sha256=digest,
            target=target,
            settings=settings,
            folder=compiled.kept_in(work),
            progress=progress,
        )
    for variant in variants:
        if variant.method in BASELINES:
            found[variant] = next(
                path
                for other, path in found.items()
                if other.shape == variant.shape
                and first_order(other.method) == first_order(variant.method)
            )
    return found, _about(Bundle.open(found[variants[0]]).manifest["model"])


def _about(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: model[key] for key in ("name", "source", "architecture", "parameters", "sha256")}


class _Turns:
    """Measures one variant; starts the baseline's process when it is first needed."""

    def __init__(
        self, bundles: Mapping[Variant, Path], model: Mapping[str, Any], threads: int, scratch: Path
    ) -> None:
        self._bundles, self._model, self._threads = bundles, model, threads
        self._scratch = scratch
        self._baseline: Baseline | None = None
        self._stack = contextlib.ExitStack()

    def __call__(self, variant: Variant, steps: int, warmup: int) -> Sample:
        bundle = self._bundles[variant]
        vocabulary = Bundle.open(bundle).manifest["model"]["vocab_size"]
        examples = examples_file(self._scratch, variant.shape, vocabulary)
        if variant.method not in BASELINES:
            return run_steps(bundle, examples, threads=self._threads, steps=steps, warmup=warmup)
        if self._baseline is None:
            source = baseline(self._model["source"], self._threads)
            self._baseline = self._stack.enter_context(source)
        return self._baseline(bundle, examples, steps, warmup)

    def close(self) -> None:
        """End the baseline's process."""
        self._stack.close()


@contextlib.contextmanager
def _turns(
    bundles: Mapping[Variant, Path], model: Mapping[str, Any], threads: int
) -> Iterator[_Turns]:
    with tempfile.TemporaryDirectory(prefix="zoexport-") as scratch:
        turns = _Turns(bundles, model, threads, Path(scratch))
        try:
            yield turns
        finally:
            turns.close()


def _key(
    content: Mapping[str, Any], variants: Sequence[Variant], bundles: Mapping[Variant, Path]
) -> str:
    """Return a key that is equal for the rounds of one measurement."""
    ids = [Bundle.open(path).id for path in bundles.values()]
    # Another build of the runtime has other times.
    runtime = [
        [file.name, file.stat().st_size, file.stat().st_mtime_ns]
        for file in sorted(runner_path().parent.iterdir())
    ]
    parts = {
        "content": content,
        "variants": list(map(str, variants)),
        "bundles": ids,
        "runtime": runtime,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
