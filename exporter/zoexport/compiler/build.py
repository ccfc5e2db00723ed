"""Compilation: capture -> passes of the method -> lowering by the target -> bundle."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import re
import shutil
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.compiler.digest import compiler_digest
from zoexport.compiler.graphs import training_graph
from zoexport.compiler.kept_weights import write_once
from zoexport.compiler.plan import Plan, fallback_plan, with_recipe
from zoexport.core import manifest, rng, tolerances
from zoexport.core.config import as_dict
from zoexport.core.errors import ConfigError, LoweringError, ModelPhases
from zoexport.core.features import Feature
from zoexport.core.files import atomic_folder
from zoexport.core.graph import LayerGraph, Measured, ModelGraph, RowReader, TrainingGraph
from zoexport.core.mask import Mask, ranges
from zoexport.core.memory import give_back, heap_left_out, status
from zoexport.core.progress import Progress
from zoexport.core.recipes import StrPath
from zoexport.core.sizes import attention_heads
from zoexport.core.target import Lowered, Pack
from zoexport.core.version import __version__
from zoexport.core.wording import worded
from zoexport.trained import kind_of
from zoexport.trained.sparse import check_mask

if TYPE_CHECKING:
    from zoexport.compiler.decoding import Generating
    from zoexport.compiler.directions import Directions
    from zoexport.models import LoadedModel, ModelSource

WEIGHTS = "weights.safetensors"
_SLOW_HERE = {"android-npu": "Qualcomm's emulation takes minutes for a step; --verify runs it"}
"""Targets whose bundles are verified only on request, with the reason."""
_LEAST_ROOM = 64.0
"""Memory in MB that verification may use beyond compilation, for weights that it cannot stream."""
_TOOLS = ("torch", "executorch", "transformers")


def compile_bundle(
    model: str | ModelSource,
    *,
    method: str | None,
    target: str,
    output: Path | None,
    settings: Mapping[str, Any],
    recipe: StrPath | None,
    force: bool,
    allow_fallback: bool = False,
    calibration: Path | None = None,
    adapter: Path | None = None,
    verify: bool | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Compile a model into a bundle.

    Args:
        model: a Hugging Face directory, a GGUF file, a hub id, a name such as ``smollm2-135m``, or
            a resolved source.
        method, target: names in the registries; the method defaults by target.
        output: folder for the bundle; None: ``./<model>-<method>-<target>``.
        settings: settings of ``--set``; they override the recipe.
        recipe: YAML file of settings, or name of a recipe (``core.recipes``).
        force: replace an existing bundle.
        allow_fallback: allow matrix products that the target's accelerator does not support.
        calibration: JSON Lines on which activations are measured: their ranges if the target
            quantizes them, or their directions.
        adapter: folder of the PEFT adapter from which training starts; its rank, alpha and layers
            are used.
        verify: run every program and compare it with the model before the bundle is written; None:
            only on targets whose programs run quickly here.
        progress: called with the name of each phase.

    Returns:
        The keys of ``compile --json``: bundle, method, target, bytes, seconds, programs, delegates,
        delegate_list, fallback_ops, fallback_reasons, notes, verified.

    Raises:
        ZoExportError: one clear error; nothing is written.
    """
    start = time.monotonic()
    planned = with_recipe(method, target, settings, recipe, adapter)
    own = planned.target.programs_config(planned.config) is planned.config
    measures = planned.config.rounds_inputs or planned.config.measures_directions
    if calibration is not None and own and not measures:
        raise ConfigError(
            f"calibration {calibration}",
            found=f"target {target} with activations={planned.config.activations}, which calibrates nothing",
            expected="android-npu with activations=int8 or int16, activation_bits=8, or lora.init_weights=activations",
            fix="Leave --calibration out.",
        )
    mask = kind_of(planned.config).mask(planned.config)
    if planned.target.notice:
        progress(planned.target.notice, None)
    # torch and transformers load only once the settings are known to be good.
    from zoexport import models

    source = models.resolve(model) if isinstance(model, str) else model
    bundle = output or Path(f"{_slug(source.name)}-{planned.method.name}-{target}")
    phases = progress = ModelPhases(source.argument, "loading the model", progress)
    with phases.explained(), atomic_folder(bundle, replace=force) as folder:
        progress("loading the model", None)
        loaded = models.load(source, lazy=planned.config.staged)
        if Feature.MODEL_OPERATORS in planned.target.has:
            models.route_experts(loaded.model)
        phases.model = loaded.architecture
        if mask is not None:
            check_mask(mask, loaded)
        with heap_left_out():
            content, reader, known = _fill(
                folder, planned, loaded, mask, allow_fallback, calibration, adapter, progress
            )
        files = [path for path in folder.rglob("*") if path.is_file()]
        progress("hashing the files", None)
        written = manifest.write(folder, content, files)
        verified = _verified(folder, planned, loaded, reader, known, verify, progress)
    return {
        "bundle": str(bundle),
        "method": planned.method.name,
        "target": target,
        "bytes": sum(entry["bytes"] for entry in written["files"].values())
        + (bundle / manifest.FILE).stat().st_size,
        "seconds": round(time.monotonic() - start, 3),
        "programs": [program["name"] for program in written["programs"]],
        "delegates": written["delegates"],
        "delegate_list": written["delegate_list"],
        "fallback_ops": written["fallback_ops"],
        "fallback_reasons": written["fallback_reasons"],
        "notes": written["notes"],
        "verified": verified,
    }


def _verified(
    folder: Path,
    planned: Plan,
    loaded: Any,
    reader: RowReader,
    known: Mapping[str, Any],
    verify: bool | None,
    progress: Progress,
) -> dict[str, Any]:
    """Verify a bundle.

    Return the keys of ``verified``: passed, loss, gradient, state (relative errors), reason.

    ``passed`` is None if the bundle was not run, and ``reason`` explains why.
    """
    skipped = {"passed": None, "loss": None, "gradient": None, "state": None}
    if verify is False:
        return {**skipped, "reason": worded("--no-verify")}
    if verify is None and planned.target.name in _SLOW_HERE:
        return {**skipped, "reason": worded(_SLOW_HERE[planned.target.name])}
    from zoexport.compiler import parity_short

    peak, now = (status(key) or 0.0 for key in ("VmHWM", "VmRSS"))
    try:
        room = max(peak - now, _LEAST_ROOM)
        found = parity_short.prove(folder, loaded, reader, room, progress, known)
    except parity_short.NotHereError as error:
        return {**skipped, "reason": f"this machine lacks {error}"}
    return {"passed": True, **dataclasses.asdict(found)}


def _fill(
    folder: Path,
    planned: Plan,
    loaded: LoadedModel,
    mask: Mask | None,
    allow_fallback: bool,
    calibration: Path | None,
    adapter: Path | None,
    progress: Progress,
) -> tuple[dict[str, Any], RowReader, dict[str, Any]]:
    """Write all files of a bundle except the manifest.

    Returns:
        The content of the manifest, the reader of the frozen weights, and the quantized weights of whole-model
        programs.
    """
    from zoexport.compiler.decoding import generating
    from zoexport.ir.frozen import with_weights

    for path in loaded.tokenizer_files:
        shutil.copyfile(path, folder / path.name)
    measured, directions = _measured(planned, loaded, calibration, progress)
    chosen = None if mask is None else mask.places

    def made(wanted: Plan) -> TrainingGraph:
        graph = training_graph(
            wanted, loaded.model, progress, source=loaded.weights, chosen=chosen, measured=measured
        )
        _drop_graphs()
        return _started(graph, loaded, adapter)

    lowered = planned.target.lower(made(planned), planned.config, folder, progress)
    if not allow_fallback:
        for part in lowered.engines():
            _refuse_fallback(planned.target.name, part)
    # Make the other programs only now, so that only one graph is in memory during lowering.
    _drop_graphs()
    other = fallback_plan(planned)
    if other is not None:
        on_cpu = planned.target.lower_fallback(made(other), folder, progress)
        lowered = _with_fallback(lowered, on_cpu)
        _drop_graphs()
    read = [(part.graph, outer_weights(part)) for part in lowered.engines()]
    outer = [name for _, names in read for name in names]
    generates = generating(planned, loaded, lowered, folder, progress, beside=outer)
    _drop_graphs()
    if generates.graph is not None:
        read.append((generates.graph, generates.weights))
    names = list(dict.fromkeys([*outer, *generates.weights]))
    if names:
        _write_weights(folder, with_weights(read), names, loaded, lowered.pack, progress)
    progress("writing the bundle", None)
    files = _described(folder, planned, loaded, lowered.graph)
    content = {
        **_description(planned, lowered, generates),
        **({"weights": {"file": WEIGHTS}} if names else {}),
        **({} if directions is None else {"lora_init_weights": directions.facts}),
        **files,
        "notes": [*loaded.notes, *lowered.notes, *generates.notes(planned.config)],
    }
    return content, lowered.graph.source or loaded.weights, _packed(lowered.graph)


def _measured(
    planned: Plan, loaded: LoadedModel, calibration: Path | None, progress: Progress
) -> tuple[Measured, Directions | None]:
    """Run the model to measure what the settings need; also return the directions' facts for the manifest."""
    from zoexport.calibration import calibration_tokens, formats_of, rotation_gains
    from zoexport.compiler.directions import directions_of

    config = planned.config
    formats = formats_of(config, loaded, calibration, progress)
    directions = directions_of(config, loaded, calibration, progress)
    gains = tokens = None
    if planned.target.programs_config(config).activations == "int8":
        progress("measuring activations", None)
        gains = rotation_gains(loaded, config.max_length)
    if calibration is not None:
        tokens = calibration_tokens(loaded, calibration, config.max_length)
    first = None if directions is None else directions.a
    return Measured(formats, first, gains, tokens), directions


def _started(graph: TrainingGraph, loaded: LoadedModel, adapter: Path | None) -> TrainingGraph:
    """Return the graph with the initial values of an adapter, and frozen weights without the trained elements."""
    from zoexport.adapters.start import start_values
    from zoexport.ir.frozen import RowsWithoutChosen

    initial, source = graph.initial, graph.source
    if adapter is not None:
        initial = initial | start_values(adapter, {slot.name: slot.shape for slot in graph.slots})
    if graph.chosen is not None:
        source = RowsWithoutChosen(loaded.weights, graph.chosen)
    return dataclasses.replace(graph, initial=initial, source=source)


def _described(
    folder: Path, planned: Plan, loaded: LoadedModel, graph: TrainingGraph
) -> dict[str, Any]:
    """Write the initial state and its PEFT configuration; return the manifest's entries of model and tokenizer."""
    from safetensors.torch import save_file

    from zoexport import adapters
    from zoexport.data.text_entry import text_entry
    from zoexport.models import is_routed

    save_file(graph.initial, folder / manifest.INITIAL_STATE)
    adapters.write_peft_config(folder, graph.slots, planned.config, loaded)
    heads = attention_heads(loaded.config)
    model = {
        "name": loaded.name,
        "source": loaded.source,
        "architecture": loaded.architecture,
        "vocab_size": loaded.vocab_size,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "sha256": loaded.sha256,
        **({} if heads is None else {"attention_heads": heads}),
        **({"experts": "routed"} if is_routed(loaded.model) else {}),
        **adapters.llama_cpp_entry(graph.slots, loaded, heads),
    }
    tokenizer = sorted(path.name for path in loaded.tokenizer_files)
    return {"model": model, "tokenizer": tokenizer, **text_entry(loaded)}


def _packed(graph: TrainingGraph) -> dict[str, Any]:
    """Return the quantized weights of a whole-model program, except those in a layout of the target."""
    import torch

    if not isinstance(graph, ModelGraph):
        return {}
    bases = [
        key.removesuffix(".codes")
        for key, value in graph.weights.items()
        if key.endswith(".codes") and value.dtype in (torch.uint8, torch.int8)
    ]
    return {
        name: graph.weights[name] for base in bases for name in (f"{base}.codes", f"{base}.scales")
    }


def _write_weights(
    folder: Path,
    graph: TrainingGraph,
    names: list[str],
    loaded: LoadedModel,
    pack: Pack | None,
    progress: Progress,
) -> None:
    """Write the file of frozen weights, or copy it from an earlier compilation of the same model."""
    from zoexport.ir import frozen

    reader = None if isinstance(graph, ModelGraph) else graph.source

    def write(path: Path) -> None:
        frozen.write_weights(graph, names, reader, path, progress, pack)

    if reader is not loaded.weights or not graph.quantized:
        # Values made by passes, weights changed by a mask or adapters, or weights that are only
        # read.
        write(folder / WEIGHTS)
        return
    parts = [loaded.sha256, compiler_digest(), frozen.content_digest(graph, names, pack)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    progress("looking for the weights of an earlier compilation", None)
    write_once(folder / WEIGHTS, key, write)


def _drop_graphs() -> None:
    """Free the graphs of passes, which contain reference cycles."""
    gc.collect()
    give_back()


def outer_weights(lowered: Lowered) -> list[str]:
    """Return the names of frozen program inputs and of the indices of sparse weights."""
    from zoexport.ir import frozen
    from zoexport.passes.separate_chosen import PLACES

    graph = lowered.graph
    if isinstance(graph, LayerGraph):
        names = frozen.bound_weights(graph)
    else:
        values = [value for entry in lowered.programs for value in entry["inputs"]]
        names = [value["name"] for value in values if value["role"] == "weight"]
    return list(dict.fromkeys([*names, *([] if graph.chosen is None else [PLACES])]))


def _with_fallback(lowered: Lowered, other: Lowered) -> Lowered:
    """Return ``lowered`` with programs for another engine; a run can switch engines between steps.

    Raises:
        LoweringError: the two train different tensors.
    """
    own, others = ([slot.as_dict() for slot in part.graph.slots] for part in (lowered, other))
    if own != others:
        differ = [slot["name"] for slot in own if slot not in others]
        raise LoweringError(
            f"programs of the engine {other.engine}",
            found=f"another state than that of {lowered.engine}: {', '.join(differ) or 'its order'}",
            expected="one state that both train",
            fix="Report this with the model's name and the settings.",
        )
    return lowered.before(other)


def _description(planned: Plan, lowered: Lowered, generates: Generating) -> dict[str, Any]:
    graph, names = lowered.graph, [entry["name"] for entry in lowered.programs]
    required = {name for part in lowered.engines() for name in part.required_ops}
    return {
        **_of_engine(lowered),
        "zoexport_version": __version__,
        "tools": {name: version(name) for name in (*_TOOLS, *lowered.tools)},
        "method": planned.method.name,
        "target": planned.target.name,
        "settings": as_dict(planned.config),
        "rng": rng.SPEC_ID,
        "rotated_weights": graph.rotated,
        "provenance": graph.provenance,
        "required_ops": sorted(required.union(generates.required_ops)),
        "generate": generates.entry,
        "state": [slot.as_dict() for slot in graph.slots],
        "delegates": sum(len(found) for found in lowered.delegates.values()),
        "delegate_list": {name: [] for name in names} | lowered.delegates,
        "fallback_ops": {name: {} for name in names} | lowered.fallback_ops,
        "fallback_reasons": lowered.fallback_reasons,
        **({"minimum_os": lowered.minimum_os} if lowered.minimum_os else {}),
        **({} if graph.chosen is None else {"chosen": _as_lists(ranges(graph.chosen))}),
        **({"activations": graph.rounded} if graph.rounded else {}),
        **({} if graph.grid is None else {"grid": graph.grid}),
        "tolerances": tolerances.bounds(planned.config),
    }


def _of_engine(lowered: Lowered) -> dict[str, Any]:
    """Return the manifest entries for the programs of one engine and their calls."""
    graph = lowered.graph
    split: dict[str, Any] = {}
    if isinstance(graph, LayerGraph):
        split["stages"] = [stage.as_dict() for stage in graph.stages]
        split["label_rows"] = graph.label_rows
    padding = {} if graph.pad_token is None else {"bidirectional": {"pad_token": graph.pad_token}}
    return {
        "engine": lowered.engine,
        "packing": lowered.packing or graph.packing,
        "programs": lowered.programs,
        "rows": graph.rows,
        "max_labels": graph.max_labels,
        "copies": graph.copies,
        "backends": lowered.backends,
        **padding,
        **({"lengths": graph.lengths} if graph.lengths else {}),
        **split,
        **({} if graph.step is None else {"step": graph.step.as_dict()}),
        **({} if lowered.fallback is None else {"fallback": _of_engine(lowered.fallback)}),
    }


def _as_lists(pairs: Mapping[str, tuple[int, int]]) -> dict[str, list[int]]:
    """Convert the tuples to lists, for JSON."""
    return {name: list(pair) for name, pair in pairs.items()}


def _refuse_fallback(target: str, lowered: Lowered) -> None:
    """Refuse matrix products on the CPU: nearly always slower than no accelerator at all."""
    outside = {
        f"{operator} x{count} in {name} ({lowered.fallback_reasons[name].get(operator, 'no reason given')})"
        for name, operators in lowered.products_outside.items()
        for operator, count in operators.items()
    }
    if outside:
        raise LoweringError(
            f"target {target}",
            found=f"matrix products that its accelerator does not take: {'; '.join(sorted(outside))}",
            expected="every matrix product in a delegate",
            fix="Pass --allow-fallback to run them on the CPU, or choose other settings.",
        )


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "model"
