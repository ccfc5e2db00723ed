"""Python API of zoexport: the command line's verbs as functions and methods with typed results.

    bundle = zoexport.compile(model, tokenizer=tokenizer, lora=LoraConfig(r=8), target="android-cpu", max_length=64)
    bundle.train("train.jsonl", state="run", steps=60)
    print(bundle.evaluate("test.jsonl", state="run").accuracy)
    bundle.export_adapter("adapter", state="run")

Every failure raises ``zoexport.ZoExportError`` (where, found, expected, fix) and leaves no partial
output. Nothing is printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zoexport import session
from zoexport.core.config import fields, keys_of
from zoexport.core.errors import ConfigError
from zoexport.core.keywords import given
from zoexport.core.trust import ANYONE
from zoexport.data.sources import Data, as_file
from zoexport.run.generate import generate, generator
from zoexport.run.progress import COMPILE, Shown, phases
from zoexport.run.results import Exported, Imported, Parity
from zoexport.run.train import evaluate, train

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zoexport.core.settings import TrainingSettings
    from zoexport.models import ModelSource

StrPath: TypeAlias = "str | os.PathLike[str]"


def compile(
    model: StrPath | PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    method: str | None = None,
    target: str = "host",
    output: StrPath | None = None,
    lora: LoraConfig | None = None,
    recipe: StrPath | None = None,
    calibration: Data | None = None,
    adapter: StrPath | None = None,
    allow_fallback: bool = False,
    force: bool = False,
    verify: bool | None = None,
    progress: Shown = False,
    max_length: int | None = None,
    batch_size: int | None = None,
    lora_r: int | None = None,
    lora_alpha: float | None = None,
    weights: Literal["fp32", "int8", "int4"] | None = None,
    soc: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Bundle:
    """Compile a model into a bundle.

    Args:
        model: a Hugging Face directory, a GGUF file, a hub id, a name such as ``smollm2-135m``,
            ``shape:NAME`` for random weights, or a live transformers model (saved in the cache).
        tokenizer: the tokenizer of a live model; all other models include theirs.
        method, target: see ``zoexport methods``, ``zoexport targets``; method defaults by target.
        output: folder of the bundle; ``./<model>-<method>-<target>`` if None.
        lora: rank, alpha, target modules and last layers of the adapters.
        recipe: a recipe's name or YAML file; the other arguments override its settings.
        calibration: data to measure activations on: their ranges, if the target quantizes them,
            or their directions (``lora.init_weights``).
        adapter: folder of a PEFT adapter to start from; it determines rank, alpha and layers.
        allow_fallback: accept matrix products that the target's accelerator does not support.
        force: replace an existing bundle.
        verify: run every program and compare losses and gradients with PyTorch before writing the
            bundle. None: on all targets except android-npu, where it takes minutes.
        progress: True shows a progress bar, on a terminal and in a notebook; or a function, called with the name of
            each phase and, if known, the completed share.
        max_length: tokens of an example; longer ones are cut. None: the method's default; also for the next four.
        batch_size: examples per step.
        lora_r, lora_alpha: rank of the adapters, which are scaled by alpha / r.
        weights: format of the frozen weights.
        soc: chips of an NPU, such as ``"SM8650,SM8750"``, or ``"auto"``: that of the connected phone.
        settings: other settings of the method (``zoexport methods``), such as ``{"lora.dropout": 0.1}``.

    Raises:
        ZoExportError: the model cannot be compiled; nothing is written.
    """
    from zoexport.compiler.build import compile_bundle

    config = config_of(method, target, recipe)
    chosen = keys_of(
        config,
        given(
            settings,
            max_length=max_length,
            batch_size=batch_size,
            lora_r=lora_r,
            lora_alpha=lora_alpha,
            weights=weights,
            soc=soc,
        ),
    )
    source = model_source(model, tokenizer)
    if lora is not None and adapter is not None:
        raise ConfigError(
            "lora",
            found="a LoraConfig beside an adapter to start from",
            expected="one of them",
            fix="Leave it out: the adapter has its own.",
        )
    if lora is not None:
        chosen |= _adapters(lora, config, chosen)
    with phases("compile", progress, COMPILE) as shown, contextlib.ExitStack() as stack:
        rows = None if calibration is None else stack.enter_context(as_file(calibration))
        compiled = compile_bundle(
            source,
            method=method,
            target=target,
            output=None if output is None else Path(output),
            settings=chosen,
            recipe=recipe,
            force=force,
            allow_fallback=allow_fallback,
            calibration=rows,
            adapter=None if adapter is None else Path(adapter),
            verify=verify,
            progress=shown,
        )
    # A bundle that was just compiled is not signed yet.
    bundle = Bundle.open(compiled["bundle"], trust=ANYONE)
    return dataclasses.replace(bundle, compiled=compiled)


@dataclasses.dataclass(frozen=True)
class Bundle(session.Bundle):
    """A compiled bundle. Its folder can be moved, or copied to a phone.

    Attributes:
        compiled: result of the compilation, the keys of ``compile --json``; None if only opened.
    """

    compiled: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

    train = train
    evaluate = evaluate
    generate = generate
    generator = generator

    def parity(
        self,
        *,
        steps: int = 5,
        model: str | None = None,
        dump: StrPath | None = None,
        progress: Shown = False,
    ) -> Parity:
        """Train a few steps in the session and in the method's PyTorch reference, and compare them.

        Args:
            steps: number of steps to compare.
            model: location of the original model, if it has moved since compiling.
            dump: folder for the noise, inputs, losses, gradients and states of both sides.
            progress: as for :func:`zoexport.compile`.

        Raises:
            ZoExportError: the bundle or the model cannot be used. A failed comparison is not an error.
        """
        from zoexport.compiler.parity import parity

        folder = None if dump is None else Path(dump)
        with phases("parity", progress) as shown:
            return Parity(**parity(self, steps=steps, model=model, dump=folder, progress=shown))

    def export_adapter(
        self,
        path: StrPath,
        *,
        state: StrPath | None = None,
        format: str | None = None,
        outtype: str | None = None,
        dtype: str | None = None,
        model: str | None = None,
        force: bool = False,
        last: bool = False,
    ) -> Exported:
        """Write a state's trained weights, or the bundle's initial ones, in another tool's format.

        Args:
            path: folder to create, or the file for ``gguf``.
            state: folder of a training state; None: the bundle's initial values.
            format: ``peft``, ``mlx``, ``gguf``, ``sparse``, ``quantized``, ``hf`` or ``merged``;
                if None, the method's default.
            outtype: data type of ``gguf``: ``f32`` (default), ``f16`` or ``q8_0``.
            dtype: ``fp16``, ``bf16`` or ``fp32``, for ``merged`` and ``hf``; None: the original's.
            model: location of the original model, if it has moved; for ``merged`` and ``hf``.
            force: replace ``path`` if it exists.
            last: use the weights of the last step, even if the run keeps its best ones.

        Raises:
            ZoExportError: the weights cannot be exported; nothing is written.
        """
        from zoexport.run.transfer import export_adapter

        return export_adapter(
            self,
            Path(path),
            state=None if state is None else Path(state),
            kind=format,
            outtype=outtype,
            dtype=dtype,
            model=model,
            force=force,
            last=last,
        )

    def import_adapter(
        self, path: StrPath, *, state: StrPath, format: str | None = None, force: bool = False
    ) -> Imported:
        """Create a training state that starts from an adapter.

        Args:
            path: folder of the adapter, or its GGUF file.
            state: folder of the state to create.
            format: the adapter's format; None: detected from its files.
            force: replace ``state`` if it exists.

        Raises:
            ZoExportError: the adapter does not fit; nothing is written.
        """
        from zoexport.run.transfer import import_adapter

        return import_adapter(self, Path(path), state=Path(state), kind=format, force=force)


def config_of(
    method: str | None, target: str, recipe: StrPath | None = None
) -> type[TrainingSettings]:
    """Return the settings class of a method, which the recipe or the target chooses if it is None.

    Raises:
        ConfigError: the method or the recipe is unknown, or they contradict.
    """
    from zoexport.compiler.plan import default_method
    from zoexport.core.recipes import read_recipe
    from zoexport.methods import methods

    return methods.get(read_recipe(recipe).chosen(method) or default_method(target)).config


def model_source(
    model: StrPath | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> str | ModelSource:
    """Return a model argument as text, or save a live model in the cache and return its source.

    Raises:
        ConfigError: the model has its own tokenizer. ModelError: the live model cannot be saved.
    """
    if not isinstance(model, (str, os.PathLike)):
        from zoexport.models.live import keep

        return keep(model, tokenizer)
    if tokenizer is not None:
        raise ConfigError(
            "tokenizer",
            found=f"a tokenizer beside {str(model)!r}, which brings its own",
            expected="a tokenizer for a live model only",
            fix="Leave it out, or pass the loaded model.",
        )
    return os.fspath(model)


def _adapters(lora: LoraConfig, config: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    from zoexport.adapters.lora_config import settings_of

    chosen = settings_of(lora)
    if not chosen.keys() <= fields(config).keys():
        raise ConfigError(
            "lora",
            found="a LoraConfig for a method that trains no adapters",
            expected="none",
            fix="Leave it out, or choose a method that trains adapters, such as mebp.",
        )
    if both := sorted(chosen.keys() & settings.keys()):
        raise ConfigError(
            "lora",
            found=f"a LoraConfig beside the settings {', '.join(both)}",
            expected="each of them once",
            fix="Say it in the LoraConfig or in the settings.",
        )
    return chosen
