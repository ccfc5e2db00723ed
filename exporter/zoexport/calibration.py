"""Calibration of activations: run the model once on a few rows and measure linear layers' inputs.

QuZO calibrates static per-tensor quantization grids on 8 rows (appendix B). Models with weights
still in their files are supported (``models.streaming``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoexport.core import activation_grids, hadamard
from zoexport.core.activation_grids import Format
from zoexport.core.config import as_dict
from zoexport.core.encoders import is_masked, model_inputs, pad_token, refuse_masked
from zoexport.core.errors import ModelError
from zoexport.core.manifest import checked_file
from zoexport.core.progress import Progress
from zoexport.core.settings import TrainingSettings
from zoexport.data import corpus
from zoexport.data.examples import read_examples
from zoexport.data.text_entry import tokenizer_of
from zoexport.models.streaming import streaming
from zoexport.models.targets import adapter_targets

if TYPE_CHECKING:
    from zoexport.models import LoadedModel
    from zoexport.session import Bundle

ROWS = 8
"""Rows that are calibrated on, as in the paper (appendix B)."""
_TRIAL_ROWS, _TRIAL_TOKENS, _LOOKED_AT = 2, 64, 16
"""Rows of random tokens, their length, and how many of all tokens are looked at."""
_WORDS = 256
"""Words that a row of the corpus is made of, as ``zoexport sensitivity`` does; what exceeds max_length is cut off."""


def formats_of(
    config: TrainingSettings, loaded: LoadedModel, data: Path | None, progress: Progress
) -> dict[str, Format] | None:
    """Return the activation formats that a method's settings require; None if they require none.

    Args:
        config: if it ``rounds_inputs``, its ``outliers``, ``datatypes``, ``max_length`` are used.
        loaded: the model. data: see :func:`calibration_rows`. progress: see ``core.progress.Progress``.

    Raises:
        ModelError, DataError: see :func:`calibration_rows` and :func:`calibrate`.
    """
    if not config.rounds_inputs:
        return None
    refuse_masked(
        loaded.model,
        "setting activation_bits=8",
        "grids that are measured on rows of causal models",
        "Leave activation_bits at 32.",
    )
    progress("calibrating activations", None)
    modules = adapter_targets(loaded.model, "all-linear", "all")
    rows = calibration_rows(loaded, config.max_length, data)
    settings = as_dict(config)
    search = settings["datatypes"] == "search"
    return calibrate(loaded, modules, rows, outliers=settings["outliers"], search=search)


def calibration_tokens(loaded: LoadedModel, data: Path, max_length: int) -> Tensor:
    """Return a data file's tokens, int64 (n, max_length), right-padded with 0, for calibration.

    Raises:
        DataError: an unusable line, or no examples. ModelError: the tokenizer cannot be read.
    """
    with tokenizer_of(loaded, max_length) as tokenizer:
        rows = [
            candidate.tokens
            for example in read_examples(tokenizer, data)
            for candidate in example.candidates
        ]
    return torch.tensor([row + [0] * (max_length - len(row)) for row in rows], dtype=torch.int64)


def calibration_file(loaded: LoadedModel, data: Path | None = None) -> Path | None:
    """Return the file that :func:`calibration_rows` reads; None if the rows are random."""
    if loaded.tokenizer is None:
        return None
    return corpus.rows(_WORDS).train if data is None else data


def calibration_rows(
    loaded: LoadedModel, max_length: int, data: Path | None = None
) -> list[list[int]]:
    """Return :data:`ROWS` rows of a file or the Brown corpus; random tokens without a tokenizer.

    Args:
        loaded: model with the tokenizer. max_length: maximum number of tokens per row.
        data: JSON Lines of shapes that training accepts. None: the corpus, fetched on first use.

    Returns:
        Tokens of each row.

    Raises:
        DataError: the file cannot be used, or the corpus cannot be fetched. ModelError: the session cannot read the
            tokenizer.
    """
    if loaded.tokenizer is None:
        generator = torch.Generator().manual_seed(0)
        shape = (ROWS, max_length)
        tokens: list[list[int]] = torch.randint(
            loaded.vocab_size, shape, generator=generator
        ).tolist()
        return tokens
    file = calibration_file(loaded, data)
    assert file is not None
    # The corpus is text without masks, which an encoder accepts as well.
    masked = is_masked(loaded.model) and data is not None
    with tokenizer_of(loaded, max_length, masked=masked) as tokenizer:
        examples = read_examples(tokenizer, file, most=ROWS)
    return [example.candidates[example.target].tokens for example in examples]


def calibrate(
    loaded: LoadedModel,
    modules: Sequence[str],
    rows: Sequence[Sequence[int]],
    *,
    outliers: float = 0.0,
    search: bool = False,
) -> dict[str, Format]:
    """Fit the format of each layer's input on all rows at once (``core.activation_grids.fit``).

    The weights are not quantized. Peak memory: one module's weights if they are in files, the rows'
    activations, and three times one layer's input.

    Args:
        loaded: the model, not modified. modules: paths of linear layers.
        rows: tokens of each row; at least one row.
        outliers: share of values in FP8 instead of INT8 (appendix B.3); 0 for none.
        search: whether to choose FP8 if its error is smaller (appendix B.2).

    Returns:
        Formats by module. Layers that read the same tensor have the same format.

    Raises:
        ModelError: a layer has no input, or one with values that are not finite.
    """
    found: dict[str, Format] = {}
    last: list[tuple[Tensor, Format]] = []
    """The last fitted input: several layers in a row read the same tensor."""

    def look(name: str, x: Tensor, values: Tensor) -> None:
        if not (last and last[0][0] is x):
            if not bool(torch.isfinite(values).all()):
                raise unusable(name, "values that are not finite", _GRID, _PLAIN)
            fitted = activation_grids.fit(values, outliers=outliers, search=search)
            last[:] = [(x, fitted)]
        format = last[0][1]
        # A layer that runs more than once gets the larger range.
        if name not in found or format.largest() > found[name].largest():
            found[name] = format

    watch(loaded, modules, rows, look)
    for name in modules:
        if name not in found:
            raise unusable(name, "no input on any row", _GRID, _PLAIN)
    return {name: found[name] for name in modules}


def rotation_gains(loaded: LoadedModel, max_length: int) -> dict[str, float]:
    """Return how many times rotation reduces the rounding error of each linear layer's input.

    The model runs once on random tokens of its whole vocabulary (rotation: ``core.hadamard``).

    Args:
        loaded: the model, not modified. max_length: tokens per row; 64 are enough.

    Returns:
        Factors by layer path; the output head's also by the token embedding's path (if tied).
    """
    modules = adapter_targets(loaded.model, "all-linear", "all")
    generator = torch.Generator().manual_seed(0)
    shape = (_TRIAL_ROWS, min(max_length, _TRIAL_TOKENS))
    rows = torch.randint(loaded.vocab_size, shape, generator=generator).tolist()
    found: dict[str, float] = {}

    def gain(values: Tensor) -> float:
        return hadamard.rotation_gain(values[:: -(-len(values) // _LOOKED_AT)])

    def look(name: str, _: Tensor, values: Tensor) -> None:
        if hadamard.can_rotate(values.shape[-1]) and len(values):
            found[name] = min(gain(values), found.get(name, math.inf))

    last = watch(loaded, modules, rows, look)
    model: Any = loaded.model
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if last is not None and hadamard.can_rotate(last.shape[-1]):
        of_head = gain(last.flatten(0, 1))
        found |= {name: of_head for name, module in model.named_modules() if module in ends}
    return found


def watch(
    loaded: LoadedModel,
    modules: Sequence[str],
    rows: Sequence[Sequence[int]],
    look: Callable[[str, Tensor, Tensor], None],
) -> Tensor | None:
    """Run the model on rows, without the output projection.

    Args:
        look: called with a layer's path, its input, and the input without padding (n, inputs).

    Returns:
        Input of the output head of a causal model, float32 (rows, tokens, hidden).
    """
    model: Any = loaded.model
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), pad_token(model) or 0, dtype=torch.int64)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        # Pad on the right: causal attention hides padding from earlier tokens.
        tokens[number, : len(row)] = torch.tensor(row)
        real[number, : len(row)] = True

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            values = x.reshape(-1, x.shape[-1])
            # Experts read a subset of the rows.
            look(name, x, values[real.flatten()] if len(values) == real.numel() else values)

        return hook

    handles = [
        model.get_submodule(name).register_forward_pre_hook(before(name)) for name in modules
    ]
    try:
        weights = streaming(model, loaded.weights) if loaded.lazy else contextlib.nullcontext()
        with torch.no_grad(), weights:
            return _run(model, model_inputs(model, tokens))
    finally:
        for handle in handles:
            handle.remove()


class _Headless(Exception):
    """Stop a run before the output projection."""


def _run(model: Any, inputs: dict[str, Any]) -> Tensor | None:
    if not is_masked(model):
        hidden: Tensor = model.base_model(**inputs)[0]
        return hidden

    def stop(*_: object) -> None:
        raise _Headless

    # An encoder's output head has its own linear layers, which can be adapted.
    handle = model.get_output_embeddings().register_forward_pre_hook(stop, prepend=True)
    try:
        with contextlib.suppress(_Headless):
            model(**inputs)
    finally:
        handle.remove()
    return None


def formats_in(bundle: Bundle) -> dict[str, Format]:
    """Return the activation formats of a bundle by layer path; empty if it quantizes none."""
    from safetensors import safe_open

    held = bundle.manifest.get("activations", {})
    if not held:
        return {}
    with (
        checked_file(bundle.path, bundle.manifest, bundle.manifest["weights"]["file"]) as path,
        safe_open(path, framework="pt") as file,
    ):
        return {
            parameter.removesuffix(".weight"): Format(*file.get_tensor(name).tolist())
            for parameter, name in held.items()
        }


def round_inputs(model: nn.Module, formats: Mapping[str, Format]) -> None:
    """Make linear layers of a model read quantized inputs."""
    for name, format in formats.items():
        layer: Any = model.get_submodule(name)
        # Not a hook: those of adapters would see the changed input.
        layer.forward = _of_rounded(layer.forward, format.tensor())


@contextlib.contextmanager
def rounding(model: nn.Module, formats: Mapping[str, Format]) -> Iterator[None]:
    """Apply :func:`round_inputs` inside the context."""
    layers: list[Any] = [model.get_submodule(name) for name in formats]
    before = [vars(layer).get("forward") for layer in layers]
    round_inputs(model, formats)
    try:
        yield
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward


def _of_rounded(forward: Callable[[Tensor], Tensor], numbers: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: forward(activation_grids.rounded(x, numbers))


_GRID = "the layer's activation grid"
_PLAIN = "activation_bits=32"


def unusable(name: str, found: str, purpose: str, instead: str) -> ModelError:
    """Return the error for a layer with unusable inputs.

    Args:
        purpose: end of the message's "expected" part. instead: setting that needs no calibration.
    """
    return ModelError(
        f"layer {name}",
        found=found,
        expected=f"finite inputs for {purpose}",
        fix=f"Check the model's weights, or compile with {instead}.",
    )
