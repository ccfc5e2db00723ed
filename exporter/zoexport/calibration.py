"""Calibration of activations: the model runs once on a few rows, and each linear layer's input is looked at.

QuZO calibrates static grids, one a tensor, on 8 rows (appendix B). A model whose weights are still in their files is
calibrated too (``models.streaming``).
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
    """The formats that a method's settings ask for; None where they ask for none.

    Args:
        config: where it ``rounds_inputs``, its ``outliers``, ``datatypes`` and ``max_length`` are used.
        loaded: the model. data: see :func:`calibration_rows`. progress: see ``core.progress.Progress``.

    Raises:
        ModelError, DataError: as :func:`calibration_rows` and :func:`calibrate`.
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
    """int64 (n, max_length): tokens of a data file's examples, padded on the right with 0, for targets that calibrate.

    Raises:
        DataError: a line cannot be used, or there is none. ModelError: the session cannot read the tokenizer.
    """
    with tokenizer_of(loaded, max_length) as tokenizer:
        rows = [
            candidate.tokens
            for example in read_examples(tokenizer, data)
            for candidate in example.candidates
        ]
    return torch.tensor([row + [0] * (max_length - len(row)) for row in rows], dtype=torch.int64)


def calibration_file(loaded: LoadedModel, data: Path | None = None) -> Path | None:
    """The file of which :func:`calibration_rows` reads rows; None where they are random."""
    if loaded.tokenizer is None:
        return None
    return corpus.rows(_WORDS).train if data is None else data


def calibration_rows(
    loaded: LoadedModel, max_length: int, data: Path | None = None
) -> list[list[int]]:
    """The first :data:`ROWS` rows of a data file or of the Brown corpus; random tokens for a model without a tokenizer.

    Args:
        loaded: whose tokenizer is used. max_length: tokens of the longest row.
        data: JSON Lines of the shapes that training takes. None: the corpus, fetched at the first call.

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
    # The corpus is text without masks, whose activations an encoder has as well.
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
    """The format of each layer's input, fitted on all rows at once (``core.activation_grids.fit``).

    Weights are the model's own, before they are quantized. The memory is that of one module's weights where they are in
    files, of the rows' activations, and of one layer's input three times.

    Args:
        loaded: stays as it is. modules: paths of linear layers.
        rows: tokens of each, at least one.
        outliers: share of values that are FP8 beside INT8 (appendix B.3); 0 for none.
        search: whether the format with the smaller error is taken, this or FP8 (appendix B.2).

    Returns:
        By module. Layers that read the same tensor have the same format.

    Raises:
        ModelError: a layer reads nothing, or values that are not finite.
    """
    found: dict[str, Format] = {}
    last: list[tuple[Tensor, Format]] = []
    """The input that was fitted last: several layers in turn read the same."""

    def look(name: str, x: Tensor, values: Tensor) -> None:
        if not (last and last[0][0] is x):
            if not bool(torch.isfinite(values).all()):
                raise unusable(name, "values that are not finite", _GRID, _PLAIN)
            fitted = activation_grids.fit(values, outliers=outliers, search=search)
            last[:] = [(x, fitted)]
        format = last[0][1]
        # A layer that runs more than once has the grid that reaches further.
        if name not in found or format.largest() > found[name].largest():
            found[name] = format

    watch(loaded, modules, rows, look)
    for name in modules:
        if name not in found:
            raise unusable(name, "no input on any row", _GRID, _PLAIN)
    return {name: found[name] for name in modules}


def rotation_gains(loaded: LoadedModel, max_length: int) -> dict[str, float]:
    """How many times smaller rounding errors of each linear layer's input are once it is rotated (``core.hadamard``).

    The model runs once on random tokens of its whole vocabulary.

    Args:
        loaded: stays as it is. max_length: tokens of a row, of which 64 are enough.

    Returns:
        By path of the layer, the output head's by that of the token embedding too, whose weight it may be.
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
    """Run the model on rows, without its product with the vocabulary.

    Args:
        look: called with a layer's path, its input, and that without the rows' padding (n, inputs).

    Returns:
        What the output head of a causal model reads, float32 (rows, tokens, hidden).
    """
    model: Any = loaded.model
    longest = max(map(len, rows))
    tokens = torch.full((len(rows), longest), pad_token(model) or 0, dtype=torch.int64)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        # On the right, where causal attention keeps padding from what is before it.
        tokens[number, : len(row)] = torch.tensor(row)
        real[number, : len(row)] = True

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            x = inputs[0]
            values = x.reshape(-1, x.shape[-1])
            # Experts read rows of their own.
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
    """Ends a run before the product with the vocabulary."""


def _run(model: Any, inputs: dict[str, Any]) -> Tensor | None:
    if not is_masked(model):
        hidden: Tensor = model.base_model(**inputs)[0]
        return hidden

    def stop(*_: object) -> None:
        raise _Headless

    # An encoder's output head has linear layers of its own, which can be adapted.
    handle = model.get_output_embeddings().register_forward_pre_hook(stop, prepend=True)
    try:
        with contextlib.suppress(_Headless):
            model(**inputs)
    finally:
        handle.remove()
    return None


def formats_in(bundle: Bundle) -> dict[str, Format]:
    """The formats of a bundle by path of the linear layer; empty where it rounds nothing."""
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
    """Make linear layers of a model read rounded inputs."""
    for name, format in formats.items():
        layer: Any = model.get_submodule(name)
        # Not a hook: those of adapters would see the changed input.
        layer.forward = _of_rounded(layer.forward, format.tensor())


@contextlib.contextmanager
def rounding(model: nn.Module, formats: Mapping[str, Format]) -> Iterator[None]:
    """:func:`round_inputs`, while inside."""
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


_GRID = "the layer's activation grid is made"
_PLAIN = "activation_bits=32"


def unusable(name: str, found: str, purpose: str, instead: str) -> ModelError:
    """The error of a layer whose inputs cannot be used.

    Args:
        purpose: what is made of them, after "numbers, of which". instead: the setting that does without.
    """
    return ModelError(
        f"layer {name}",
        found=found,
        expected=f"numbers, of which {purpose}",
        fix=f"Check the model's weights, or compile with {instead}.",
    )
