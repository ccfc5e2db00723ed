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
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zoexport.core import trust as trusts
from zoexport.core.errors import ConfigError, DataError
from zoexport.core.types import Progress
from zoexport.run.results import Evaluated, Exported, Generated, Imported, Parity, Trained
from zoexport.session import read_manifest

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zoexport.core.minisign import PublicKey
    from zoexport.data.sources import DataSource
    from zoexport.models import ModelSource
    from zoexport.run.generate import Generator
    from zoexport.session import Sampling, StepEvaluation, StepProgress

StrPath: TypeAlias = "str | os.PathLike[str]"
Data: TypeAlias = "StrPath | DataSource | Iterable[Mapping[str, Any]]"
"""Where examples are (a path, ``hf:NAME``, or a :class:`zoexport.DataSource`), or they themselves."""


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
    progress: Progress | None = None,
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
    from zoexport.compiler.build import compile_bundle, default_method
    from zoexport.core.recipes import read_recipe
    from zoexport.methods import methods

    method = read_recipe(recipe).chosen(method)
    config = methods.get(method or default_method(target)).config
    chosen = {**(by_key or {}), **_by_key(config, settings)}
    source = _source(model, tokenizer)
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
        rows = None if calibration is None else stack.enter_context(_as_file(calibration))
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
            progress=progress or _silent,
        )
    with trusts.required(()):  # what was made here is not signed yet
        bundle = Bundle.open(compiled["bundle"])
    return dataclasses.replace(bundle, compiled=compiled)


@dataclasses.dataclass(frozen=True)
class Bundle:
    """A compiled bundle; its folder may be moved and pushed to a phone.

    Attributes:
        path: the folder.
        manifest: the content of its manifest.json (docs/bundle.md).
        compiled: what compiling said of it, the keys of ``compile --json``; None of a bundle that was opened.
        trusted: keys of which one must have signed it, whenever a method opens it; where None, what
            the environment requires.
        engine: which of the engines that it has programs for trains, evaluates and generates; its own where None.
    """

    path: Path
    manifest: Mapping[str, Any] = dataclasses.field(repr=False)
    compiled: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    trusted: tuple[PublicKey, ...] | None = dataclasses.field(default=None, repr=False)
    engine: str | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        trust: Iterable[StrPath] | None = None,
        engine: str | None = None,
    ) -> Bundle:
        """Open a bundle's folder.

        Args:
            path: the folder.
            trust: public keys, as files or as their lines, of which one must have signed it (``zoexport sign``).
            engine: ``executorch`` for the CPU's programs of a bundle that was compiled for android-gpu.

        Raises:
            BundleError: it is none, one of another version, or signed by none of the keys.
            ConfigError: no public key among ``trust``.
        """
        trusted = None if trust is None else trusts.parsed(trust, "trust")
        if trusted == ():
            raise ConfigError(
                "trust",
                found="no public key",
                expected="at least one",
                fix="Leave it out to open any bundle.",
            )
        with trusts.required(trusted):
            return cls(Path(path), read_manifest(Path(path)), trusted=trusted, engine=engine)

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.manifest["method"])

    @property
    def target(self) -> str:
        """The target's name."""
        return str(self.manifest["target"])

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting that it was compiled with, by key."""
        return dict(self.manifest["settings"])

    def train(
        self,
        data: Data,
        *,
        state: StrPath,
        steps: int,
        progress: Callable[[StepProgress], None] | None = None,
        phase: Progress | None = None,
        by_key: Mapping[str, Any] | None = None,
        recover: bool = False,
        change_settings: bool = False,
        eval_data: Data | None = None,
        eval_every: int | None = None,
        patience: int | None = None,
        keep: Literal["last", "best"] | None = None,
        evaluated: Callable[[StepEvaluation], None] | None = None,
        report_to: Iterable[str] = (),
        **settings: Any,
    ) -> Trained:
        """Train until the state has ``steps`` steps in total, in the session that a phone runs.

        Args:
            data: examples (docs/cli.md).
            state: a folder; a run that has one goes on from it.
            steps: in total, those that the state has included.
            progress: called after every step.
            phase: called with what happens before the first one.
            by_key: more settings, under the keys of ``--set``.
            recover: go on from the last good record of a damaged log.
            change_settings: go on with other settings or data than the run's; else they are refused.
            eval_data: held-out examples, on which it evaluates before the first step, every ``eval_every`` steps (a
                tenth of all) and after the last. ``patience`` evaluations in a row without a lower loss end the run.
                Who reads the state then gets the values of the best evaluation, with ``keep="last"`` those of the
                last step. A run that goes on keeps all of these.
            evaluated: called after each evaluation.
            report_to: ``tensorboard``, ``trackio``, ``jsonl``, or one with its ``:PLACE`` (docs/report.md).
            settings: what need not be compiled in, such as ``learning_rate``, ``lr_scheduler_type``, ``eps``, ``seed``
                and ``loss``; what is not given is the run's, or the bundle's for a new one.

        Raises:
            ZoExportError: something cannot be used, the run diverged, or it was stopped.
        """
        from zoexport.run.train import HeldOut, train

        with (
            _as_file(data) as file,
            contextlib.nullcontext() if eval_data is None else _as_file(eval_data) as held_out,
            trusts.required(self.trusted),
        ):
            found = train(
                self.path,
                data=file,
                state=Path(state),
                steps=steps,
                settings={**(by_key or {}), **self._by_key(settings)},
                progress=progress or _silent,
                phase=phase or _silent,
                recover=recover,
                change_settings=change_settings,
                held_out=None
                if held_out is None
                else HeldOut(held_out, eval_every, patience, keep),
                evaluated=evaluated,
                report_to=tuple(report_to),
                engine=self.engine,
            )
        return Trained(**{**found, "state": Path(state)})

    def evaluate(
        self,
        data: Data,
        *,
        state: StrPath | None = None,
        generate: bool = False,
        max_new_tokens: int = 64,
        stop: Iterable[str] = (),
        progress: Progress | None = None,
        by_key: Mapping[str, Any] | None = None,
        last: bool = False,
        **settings: Any,
    ) -> Evaluated:
        """Loss and accuracies of a state, or of the bundle as compiled.

        Args:
            data: examples (docs/cli.md).
            state: a training state's folder, which stays as it is.
            generate: also generate an answer to each prompt, and compare it with the right ones by SQuAD's rules.
            max_new_tokens, stop: of answers; see :meth:`generate`.
            progress: called with what is being done.
            by_key, settings: only those of the loss, and ``pack``.
            last: the values of the last step, also where the run keeps its best.

        Raises:
            ZoExportError: something cannot be used.
        """
        from zoexport.run.train import evaluate

        where = None if state is None else Path(state)
        with _as_file(data) as file, trusts.required(self.trusted):
            questions = None
            if generate:
                from zoexport.run.answers import answered, read_questions

                questions = read_questions(file)
            found = evaluate(
                self.path,
                data=file,
                state=where,
                settings={**(by_key or {}), **self._by_key(settings)},
                phase=progress or _silent,
                last=last,
                engine=self.engine,
            )
            if questions is not None:
                found |= answered(
                    self.path,
                    questions,
                    state=where,
                    max_new_tokens=max_new_tokens,
                    stop=tuple(stop),
                    phase=progress or _silent,
                    last=last,
                    engine=self.engine,
                )
        return Evaluated(**found)

    def generate(
        self,
        prompt: str | Iterable[Mapping[str, str]],
        *,
        state: StrPath | None = None,
        adapter: StrPath | None = None,
        max_new_tokens: int = 128,
        stop: Iterable[str] = (),
        sampling: Sampling | None = None,
        sliding: bool = False,
        last: bool = False,
        on_text: Callable[[str], None] | None = None,
    ) -> Generated:
        """Generate what follows a prompt.

        Args:
            prompt: a text as it is, to which nothing is added but what the tokenizer adds by itself; or the messages of
                a conversation, ``{"role", "content"}``, that is answered.
            state: a training state's folder, which stays as it is.
            adapter: what :meth:`export_adapter` wrote, in place of a state.
            max_new_tokens: that follow at most.
            stop: strings before the first of which the text ends.
            sampling: the most likely token each time where None.
            sliding: past the bundle's context go on over the last part of the tokens (docs/generate.md).
            last: the state's values of the last step, also where the run keeps its best.
            on_text: called with pieces of text as they come.

        Raises:
            ZoExportError: something cannot be used.
        """
        from zoexport.run.generate import Prompt, generate

        given = (
            Prompt(prompt)
            if isinstance(prompt, str)
            else Prompt(messages=tuple((one["role"], one["content"]) for one in prompt))
        )
        with trusts.required(self.trusted):
            (found,) = generate(
                self.path,
                [given],
                state=None if state is None else Path(state),
                adapter=None if adapter is None else Path(adapter),
                max_new_tokens=max_new_tokens,
                stop=tuple(stop),
                sampling=sampling,
                sliding=sliding,
                last=last,
                on_text=on_text,
                engine=self.engine,
            )
        return Generated(**found)

    def generator(
        self,
        *,
        state: StrPath | None = None,
        adapters: Mapping[str, StrPath] | None = None,
        last: bool = False,
    ) -> Generator:
        """Open the bundle once to generate several texts, with adapters that are switched in between.

        Args:
            state: a training state's folder, which stays as it is.
            adapters: by name, what :meth:`export_adapter` wrote; :meth:`Generator.load_adapter` takes more of them.
            last: the state's values of the last step, also where the run keeps its best.

        Returns:
            A :class:`zoexport.run.generate.Generator`, to be used in a ``with`` statement.

        Raises:
            ZoExportError: something cannot be used.
        """
        from zoexport.run.generate import Generator

        with trusts.required(self.trusted):
            return Generator.open(
                self.path,
                state=None if state is None else Path(state),
                adapters={name: Path(path) for name, path in (adapters or {}).items()},
                last=last,
                engine=self.engine,
            )

    def parity(
        self,
        *,
        steps: int = 5,
        model: str | None = None,
        dump: StrPath | None = None,
        progress: Progress | None = None,
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

        with trusts.required(self.trusted):
            found = parity(
                self.path,
                steps=steps,
                model=model,
                dump=None if dump is None else Path(dump),
                progress=progress or _silent,
            )
        return Parity(**found)

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

        with trusts.required(self.trusted):
            found = export_adapter(
                self.path,
                state=None if state is None else Path(state),
                kind=format,
                output=Path(path),
                force=force,
                outtype=outtype,
                dtype=dtype,
                model=model,
                last=last,
            )
        return Exported(**{**found, "adapter": Path(path)})

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

        with trusts.required(self.trusted):
            found = import_adapter(
                self.path, adapter=Path(path), kind=format, state=Path(state), force=force
            )
        return Imported(**{**found, "state": Path(state)})

    def _by_key(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        if not settings:
            return {}  # a process that trains need not load the methods
        from zoexport.methods import methods

        return _by_key(methods.get(self.method).config, settings)


def _silent(*_: object) -> None:
    pass


def _by_key(config: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the settings' own keys; what is none stays, for the error that names it."""
    from zoexport.core.config import fields

    keys = {key.replace(".", "_"): key for key in fields(config)}
    return {keys.get(name, name): value for name, value in settings.items()}


def _source(
    model: StrPath | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> str | ModelSource:
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
    from zoexport.core.config import fields

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


@contextlib.contextmanager
def _as_file(data: Data) -> Iterator[Path]:
    """The examples as a file of JSON Lines."""
    from zoexport.data.sources import DataSource, opened

    if isinstance(data, (str, os.PathLike)):
        data = DataSource(data)
    if isinstance(data, DataSource):
        with opened(data) as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="zoexport-") as folder:
        path = Path(folder) / "data.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for number, example in enumerate(data):
                file.write(_line(number, example))
        yield path


def _line(number: int, example: Any) -> str:
    try:
        if not isinstance(example, Mapping):
            raise TypeError(f"a {type(example).__name__}")
        return json.dumps(dict(example), ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise DataError(
            f"example {number}",
            found=str(error),
            expected="a mapping of names to text, as a line of JSON Lines has",
            fix="Give dicts such as {'prompt': '...', 'completion': '...'}.",
        ) from error
