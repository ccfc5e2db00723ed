"""Sensitivity of linear weights: squared gradients, and masks of the largest (SensZOQ).

``zoexport sensitivity`` is :func:`make_mask`. For reports, :func:`averaged_squares` gives a model's squared gradients
on a data file, and :func:`zoexport.tools.mask_choice.coverage` the share of them that a mask covers. docs/formats.md
describes the file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.core.encoders import refuse_masked
from zoexport.core.errors import ConfigError
from zoexport.core.mask import Mask, MaskFacts, write_mask
from zoexport.core.memory import status
from zoexport.core.progress import Progress
from zoexport.tools.mapped import MappedTensors, scratch_folder
from zoexport.tools.mask_choice import READ_TEXT, MaskConfig, parse_config

if TYPE_CHECKING:
    from zoexport.models import LoadedModel
    from zoexport.tools.linears import Linears
    from zoexport.tools.mask_text import Text

"""The kinds that gradients choose; the others need no text."""


def make_mask(
    model: str,
    *,
    data: Path | None,
    output: Path,
    settings: Mapping[str, str],
    device_map: str | None,
    force: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Choose weights of a model and write the mask file.

    Args:
        model: a Hugging Face directory, a GGUF file, a hub id, or a name such as ``smollm2-135m``.
        data: text for the gradients; None: the Brown corpus.
        output: the mask file.
        settings: of ``--set``, see :class:`MaskConfig`.
        device_map: of :data:`~zoexport.tools.offload.DEVICE_MAPS`; None keeps the model in memory.
        force: replace a file that is already there.
        progress: called with the name of each phase, and how much of it is done.

    Returns:
        The keys of ``sensitivity --json``: mask, model, kind, corpus, density, chosen, weights, sequences, coverage,
        seconds, peak_rss_mb.

    Raises:
        ZoExportError: one clear error; nothing is written.
    """
    start = time.monotonic()
    config = parse_config(settings)
    _check(config, data, output, device_map, force)
    # torch and transformers load only once the settings are known to be good.
    from zoexport import models
    from zoexport.tools import mask_text

    source = models.resolve(model)
    if config.reads_text:
        mask_text.data_file(data, config)
    progress("loading the model", None)
    loaded = models.load(source, lazy=not config.reads_text or device_map in ("auto", "disk"))
    # Next to the output, because the temporary folder may be in memory.
    beside = next(folder for folder in output.absolute().parents if folder.is_dir())
    mask, coverage = choose_mask(
        loaded, data, config, beside, progress=progress, device_map=device_map
    )
    progress("writing the mask", None)
    write_mask(output, mask)
    weights = sum(rows * columns for rows, columns in mask.facts.shapes.values())
    return {
        "mask": str(output),
        "model": mask.facts.model,
        "kind": config.kind,
        "corpus": mask.facts.corpus or None,
        "density": config.density,
        "chosen": mask.count(),
        "weights": weights,
        "sequences": mask.facts.sequences,
        "coverage": coverage,
        "seconds": round(time.monotonic() - start, 3),
        "peak_rss_mb": status("VmHWM"),
    }


def _check(
    config: MaskConfig, data: Path | None, output: Path, device_map: str | None, force: bool
) -> None:
    """Check the arguments before anything is loaded."""
    if not config.reads_text:
        given = {"data": data, "device-map": device_map}
        for name, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"option --{name}",
                    found=f"{value} with kind={config.kind}, which takes no gradients",
                    expected=f"this option with kind={' or '.join(READ_TEXT)} only",
                    fix="Leave it out.",
                )
    if output.is_dir() or (output.exists() and not force):
        raise ConfigError(
            f"output {output}",
            found="a folder" if output.is_dir() else "something that is already there",
            expected="a path that does not exist yet",
            fix="Choose another path"
            + ("." if output.is_dir() else ", or pass --force to replace it."),
        )


def choose_mask(
    loaded: LoadedModel,
    data: Path | None,
    config: MaskConfig,
    folder: Path,
    *,
    progress: Progress,
    device_map: str | Mapping[str, str | int] | None = None,
) -> tuple[Mask, float | None]:
    """Choose weights of a loaded model.

    Args:
        loaded: may be lazy without gradients or with a device map, which changes the model.
        data: as for :func:`make_mask`. config: the settings.
        folder: for scratch files, as large as the linear weights in float32.
        progress: called with the name of each phase, and how much of it is done.
        device_map: of :func:`~zoexport.tools.offload.offload`.

    Returns:
        The mask, and for kind=sensitive the share of the squared gradient norm that it covers.

    Raises:
        ZoExportError: the text cannot be used, the model has no linear weights, a gradient is not finite, or there is
            no room for the file.
    """
    from zoexport.tools import mask_choice
    from zoexport.tools.linears import linear_weights, shapes
    from zoexport.tools.mask_text import read_text

    if config.reads_text:
        refuse_masked(
            loaded.model,
            f"setting kind={config.kind}",
            "gradients of the loss of following tokens",
            "Choose kind=random, largest or smallest.",
        )
    linears = linear_weights(loaded.model)
    sizes = shapes(linears)
    counts = mask_choice.counts(sizes, config.density, config.scope)
    text = None
    if config.reads_text:
        progress("reading the text", None)
        text = read_text(data, loaded, config)
    with contextlib.ExitStack() as stack:
        measured: Mapping[str, Any] = {}
        if text is not None:
            if device_map is not None:
                from zoexport.tools.offload import offload

                offload(loaded, device_map, stack.enter_context(scratch_folder(folder)))
            measured = stack.enter_context(
                _measured(loaded, linears, text, config.kind, folder, progress)
            )
        progress("choosing the weights", None)
        score = {
            "sensitive": lambda: mask_choice.squares_score(measured),
            "random": lambda: mask_choice.random_score(sizes, config.seed),
            "largest": lambda: mask_choice.largest_score(loaded.weights),
            "smallest": lambda: mask_choice.smallest_score(loaded.weights),
            "grasp": lambda: mask_choice.grasp_score(loaded.weights, measured),
        }[config.kind]()
        places = mask_choice.choose(sizes, score, counts)
        mask = Mask(facts(loaded, text, config, sizes), places)
        return mask, mask_choice.coverage(mask, measured) if config.kind == "sensitive" else None


@contextlib.contextmanager
def averaged_squares(
    loaded: LoadedModel,
    data: Path | None,
    config: MaskConfig,
    folder: Path,
    *,
    progress: Progress,
) -> Iterator[MappedTensors]:
    """Yield a model's mean squared gradients, for :func:`~zoexport.tools.mask_choice.coverage`.

    Args:
        loaded: model that is not lazy. data: as for :func:`make_mask`.
        config: settings; only ``sequences``, ``max_length`` and ``seed`` are used.
        folder: for the scratch file, as large as the linear weights in float32.
        progress: called with the name of each phase, and how much of it is done.

    Yields:
        By linear weight's name, float32 (rows, columns), mapped; gone when the block is left.

    Raises:
        ZoExportError: as :func:`choose_mask`.
    """
    from zoexport.tools.linears import linear_weights
    from zoexport.tools.mask_text import read_text

    linears = linear_weights(loaded.model)
    text = read_text(data, loaded, config)
    with _measured(loaded, linears, text, "sensitive", folder, progress) as squares:
        yield squares


@contextlib.contextmanager
def _measured(
    loaded: LoadedModel,
    linears: Linears,
    text: Text,
    kind: str,
    folder: Path,
    progress: Progress,
) -> Iterator[MappedTensors]:
    """Yield the selection scores of a kind that uses gradients."""
    from zoexport.tools.gradients import hessian_gradients, squared_gradients

    passes = hessian_gradients if kind == "grasp" else squared_gradients
    phase = f"gradients of {len(text.sequences)} sequences"
    with passes(
        loaded.model, linears, text.sequences, folder, lambda share: progress(phase, share)
    ) as found:
        yield found


def facts(
    loaded: LoadedModel,
    text: Text | None,
    config: MaskConfig,
    sizes: Mapping[str, tuple[int, int]],
) -> MaskFacts:
    """Return the facts of a mask, with those of ``text`` if its gradients were used."""
    return MaskFacts(
        kind=config.kind,
        model=loaded.name,
        model_sha256=loaded.sha256,
        corpus=text.name if text else "",
        corpus_sha256=text.sha256 if text else "",
        sequences=len(text.sequences) if text else 0,
        max_length=max(len(sequence.tokens) for sequence in text.sequences) if text else 0,
        density=config.density,
        scope=config.scope,
        seed=config.seed,
        shapes={name: list(shape) for name, shape in sizes.items()},
        loss=text.loss if text else "",
    )
