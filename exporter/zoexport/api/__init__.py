"""zoexport from Python: the verbs of the command line as functions and a :class:`Bundle`, with typed results.

    bundle = zoexport.compile(model, tokenizer=tokenizer, lora=LoraConfig(r=8), target="android-cpu", max_length=64)
    bundle.train("train.jsonl", state="run", steps=60)
    print(bundle.evaluate("test.jsonl", state="run").accuracy)
    bundle.export_adapter("adapter", state="run")

Every failure is a ``zoexport.ZoExportError`` that says where, what was found, what was expected and what to do; nothing
half-written stays behind. Nothing is printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from zoexport import session
from zoexport.core.config import fields, keys_of
from zoexport.core.errors import ConfigError
from zoexport.core.progress import Progress, silent
from zoexport.core.trust import ANYONE
from zoexport.data.sources import Data, as_file
from zoexport.run.generate import generate, generator
from zoexport.run.results import Exported, Imported, Parity
from zoexport.run.train import evaluate, train

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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
    progress: Progress = silent,
    by_key: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Bundle:
    """Compile a model into a bundle.

    Args:
        model: a Hugging Face directory, a GGUF file, a hub id, a name such as ``smollm2-135m``, ``shape:NAME`` for
            random weights, or a live transformers model, which is saved below the cache first.
        tokenizer: of a live model; the others bring theirs.
        method, target: see ``zoexport methods`` and ``zoexport targets``; the method defaults by target.
        output: the bundle's folder, ``./<model>-<method>-<target>`` where None.
        lora: rank, alpha, target modules and last layers of the adapters.
        recipe: a recipe's name or a YAML file: a method, and settings over which ``lora`` and ``settings`` win.
        calibration: rows on which activations are measured: their ranges, where a target quantizes them, or their
            directions (``lora.init_weights``).
        adapter: the folder of PEFT's adapter that training starts from; rank, alpha and layers are its own.
        allow_fallback: accept matrix products that the target's accelerator does not take.
        force: replace a bundle that is already there.
        verify: run every program and compare losses and gradients with PyTorch before the bundle is written; None: on
            all targets but android-npu, which takes minutes.
        progress: called with the name of each phase, and how far it is where that is known.
        by_key: more settings, under the keys of ``--set``: ``{"lora.r": 8}``.
        settings: of the method (``zoexport methods``), with ``_`` for a dot: ``max_length=64, lora_r=8``.

    Raises:
        ZoExportError: one clear error; nothing is written.
    """
    from zoexport.compiler.build import compile_bundle
    from zoexport.compiler.plan import default_method
    from zoexport.core.recipes import read_recipe
    from zoexport.methods import methods

    method = read_recipe(recipe).chosen(method)
    config = methods.get(method or default_method(target)).config
    chosen = {**(by_key or {}), **keys_of(config, settings)}
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
    with contextlib.ExitStack() as stack:
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
            progress=progress,
        )
    # What was made here is not signed yet.
    bundle = Bundle.open(compiled["bundle"], trust=ANYONE)
    return dataclasses.replace(bundle, compiled=compiled)


@dataclasses.dataclass(frozen=True)
class Bundle(session.Bundle):
    """A compiled bundle; its folder may be moved and pushed to a phone.

    Attributes:
        compiled: what compiling said of it, the keys of ``compile --json``; None of a bundle that was opened.
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
        progress: Progress = silent,
    ) -> Parity:
        """Train a few steps in the session and in the method's reference in PyTorch, and compare.

        Args:
            steps: to compare.
            model: where the original model is, if not where it was compiled from.
            dump: a folder for both sides' noise, inputs, losses, gradients and states.
            progress: called with what is being done.

        Raises:
            ZoExportError: the bundle or the model cannot be used. A failed comparison is not an error.
        """
        from zoexport.compiler.parity import parity

        folder = None if dump is None else Path(dump)
        return Parity(**parity(self, steps=steps, model=model, dump=folder, progress=progress))

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
        """Write what a state has trained, or the bundle's initial values, as another tool's files.

        Args:
            path: the folder to create; of ``gguf``, the file.
            state: a training state's folder.
            format: ``peft``, ``mlx``, ``gguf``, ``sparse``, ``quantized``, ``hf`` or ``merged``; what fits the method
                where None.
            outtype: the numbers of ``gguf``: ``f32`` where None, ``f16`` or ``q8_0``.
            dtype: of the weights of ``merged`` and ``hf``: ``fp16``, ``bf16`` or ``fp32``; the original's if None.
            model: where the original model is, if not where it was compiled from; for ``merged`` and ``hf``.
            force: replace ``path`` where it exists.
            last: the state's values of the last step, also where the run keeps its best.

        Raises:
            ZoExportError: something cannot be used; nothing is written.
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
        """Create a state that begins with an adapter.

        Args:
            path: the adapter's folder, or its GGUF file.
            state: the state's folder to create.
            format: of the adapter; what :meth:`export_adapter` writes where None.
            force: replace ``state`` where it exists.

        Raises:
            ZoExportError: the adapter does not fit; nothing is written.
        """
        from zoexport.run.transfer import import_adapter

        return import_adapter(self, Path(path), state=Path(state), kind=format, force=force)


def model_source(
    model: StrPath | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> str | ModelSource:
    """Return a model argument as text; save a live model below the cache first.

    Raises:
        ConfigError: a tokenizer for a model that has its own. ModelError: the live model cannot be saved.
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
