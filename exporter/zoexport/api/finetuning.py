"""Fine-tune a model on a person's own data in one call: ``zoexport finetune`` and :func:`zoexport.finetune`.

    run = zoexport.finetune("smollm2-135m", "mails.jsonl", output="mails")
    print(run.generate("Write to Zack about the box.").text)

It compiles the model into the cache, holds out a tenth of the examples, trains, and exports the adapter. The output
folder contains:

    bundle/       the compiled model
    data/         train.jsonl and valid.jsonl
    run/          the training state; the same call resumes it
    adapter/      the trained adapter in PEFT's format
    finetune.json what the folder was made from
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import itertools
import json
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoexport.api import Bundle, StrPath, config_of, model_source
from zoexport.compiler.cached import cached_bundle
from zoexport.core.config import keys_of
from zoexport.core.errors import ConfigError, DataError, StateError
from zoexport.core.files import atomic_folder, sha256, write_json
from zoexport.core.keywords import given
from zoexport.core.progress import Notice, Progress
from zoexport.core.trust import ANYONE
from zoexport.core.version import __version__
from zoexport.data.sources import Data, DataSource, as_file, splits
from zoexport.run.generate import Generator, Prompt, asked, generator, prompt_of
from zoexport.run.hub import push_to_hub, write_card
from zoexport.run.progress import stepping
from zoexport.run.results import Evaluated, Exported, Generated, Trained
from zoexport.session.data import prompts_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from zoexport.session import StepEvaluation
    from zoexport.session import StepProgress as Step

RECORD = "finetune.json"
TARGET = "android-cpu"
_HELD_OUT = 10
"""One of this many examples is held out."""
_EPOCHS = 3
_LEAST_STEPS, _MOST_STEPS = 60, 1000
"""Limits of the default number of steps: few examples need more passes, and many a time that a person waits for."""
_MOST_TOKENS = 1024
"""Longest ``max_length`` that is chosen by the data."""
_UNIT = 64
_SHOWN = 3
_FIRST_WORDS = 6
"""Words of a plain text that serve as its prompt."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Completions of a held-out prompt.

    Attributes:
        prompt: the text, or the last message of the conversation.
        expected: the completion in the data.
        before, after: completions without and with the trained adapter.
    """

    prompt: str
    expected: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Run:
    """A fine-tuned model.

    Attributes:
        output: the folder with everything.
        bundle: the compiled model.
        trained: the training run; ``trained.evaluations`` has the validation losses.
        comparisons: completions of held-out prompts before and after training; empty if the bundle cannot generate.
        resumed: whether ``output`` already contained a run.
    """

    output: Path
    bundle: Bundle
    trained: Trained
    comparisons: tuple[Comparison, ...]
    resumed: bool

    @property
    def state(self) -> Path:
        """Folder of the training state."""
        return self.output / "run"

    @property
    def adapter(self) -> Path:
        """Folder of the adapter in PEFT's format, or of the method's other trained weights."""
        return self.output / "adapter"

    def generate(self, prompt: Prompt | str, **options: Any) -> Generated:
        """Generate a completion with the trained adapter.

        Args:
            prompt: a text, sent as a message if the model has a chat template and was trained
                on conversations; or a conversation.
            options: see :meth:`zoexport.Bundle.generate`.

        Raises:
            ZoExportError: the bundle cannot generate.
        """
        if isinstance(prompt, str):
            prompt = asked(self.bundle, prompt, state=self.state)
        return self.bundle.generate(prompt, state=self.state, **options)

    def evaluate(self, data: Data, **options: Any) -> Evaluated:
        """Evaluate the adapter on other examples, see :meth:`zoexport.Bundle.evaluate`."""
        return self.bundle.evaluate(data, state=self.state, **options)

    def export(self, path: StrPath, format: str | None = None, **options: Any) -> Exported:
        """Export the adapter; for the arguments see :meth:`zoexport.Bundle.export_adapter`."""
        return self.bundle.export_adapter(path, state=self.state, format=format, **options)

    def push_to_hub(self, repo: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the adapter with a model card to the Hugging Face Hub, and return its address.

        Args:
            repo: repository, ``owner/name``; created if needed.
            private: whether a new repository is private.
            token: access token; None: the token of ``hf auth login`` or ``HF_TOKEN``.

        Raises:
            ConfigError: no login, or no permission to write there.
        """
        write_card(self.adapter, self.bundle, state=self.state, repo=repo)
        return push_to_hub(self.adapter, repo, private=private, token=token)

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of ``finetune --json``."""
        return {
            "output": str(self.output),
            "bundle": str(self.bundle.path),
            "adapter": str(self.adapter),
            "resumed": self.resumed,
            "comparisons": [dataclasses.asdict(one) for one in self.comparisons],
            **self.trained.as_dict(),
        }


def finetune(
    model: StrPath | PreTrainedModel,
    data: Data,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    output: StrPath | None = None,
    eval_data: Data | None = None,
    target: str = TARGET,
    method: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    lora_r: int | None = None,
    max_length: int | None = None,
    max_new_tokens: int = 64,
    overwrite: bool = False,
    progress: bool | Callable[[Step], object] = False,
    phase: Progress | None = None,
    evaluated: Callable[[StepEvaluation], None] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Run:
    """Fine-tune a model on examples and export the adapter.

    The same call resumes a run that was stopped.

    Args:
        model, tokenizer: see :func:`zoexport.compile`.
        data: as for :meth:`zoexport.Bundle.train`.
        output: the folder to write, ``./<model>-finetuned`` if None.
        eval_data: validation examples; if None, a tenth of ``data`` is held out. The weights of the evaluation with
            the lowest loss are kept.
        target, method: see :func:`zoexport.compile`.
        steps: training steps; if None, from ``epochs``.
        epochs: passes over the training examples; if None, 3, but at least 60 and at most 1000 steps.
        learning_rate, batch_size, lora_r: the method's defaults if None.
        max_length: tokens of an example; longer ones are cut. If None, the method's default, or what the longest
            example needs, at most 1024.
        max_new_tokens: length of the completions in ``Run.comparisons``.
        overwrite: start over if ``output`` contains a run.
        progress: as for :meth:`zoexport.Bundle.train`, which it also reports.
        phase: called with each phase before the first step and after the last.
        evaluated: called after each evaluation.
        settings: other settings of the method (``zoexport methods``), such as ``{"lora.dropout": 0.1}``.

    Raises:
        ZoExportError: an input cannot be used, or the run was stopped (and saved).
    """
    if steps is not None and epochs is not None:
        raise ConfigError(
            "steps and epochs", found="both", expected="one of them", fix="Leave one out."
        )
    chosen = keys_of(
        config_of(method, target),
        given(
            settings,
            learning_rate=learning_rate,
            batch_size=batch_size,
            lora_r=lora_r,
            max_length=max_length,
        ),
    )
    # Not compiled in, so that another rate needs no other bundle.
    rate = {key: chosen.pop(key) for key in ("learning_rate",) if key in chosen}
    with stepping("finetune", progress, phase, evaluated) as (on_step, shown, on_evaluated):
        shown("reading the examples", None)
        argument = _argument(model, tokenizer)
        folder = Path(output) if output is not None else Path(f"{Path(argument).stem}-finetuned")
        _refuse_others(folder)
        with _split(*splits(data, eval_data)) as (files, sources):
            made_from = {
                "zoexport": __version__,
                "model": argument,
                "target": target,
                "method": method,
                "settings": {key: str(value) for key, value in sorted({**chosen, **rate}.items())},
                **{name: sha256(file) for name, file in files.items()},
            }
            resumed = not overwrite and _same(folder, made_from)
            if not resumed:
                compiled = _fitting(argument, target, method, chosen, sources, shown)
                _write(folder, compiled, files, made_from)
        bundle = Bundle.open(folder / "bundle", trust=ANYONE)
        train_data, valid = folder / "data" / "train.jsonl", folder / "data" / "valid.jsonl"
        trained = bundle.train(
            train_data,
            state=folder / "run",
            steps=steps or (None if epochs else _steps(bundle, train_data)),
            epochs=epochs,
            eval_data=valid if valid.exists() else None,
            phase=shown,
            progress=on_step,
            evaluated=on_evaluated,
            settings=rate,
        )
        comparisons: tuple[Comparison, ...] = ()
        if valid.exists() and "programs" in bundle.manifest.get("generate", {}):
            shown("generating completions", None)
            comparisons = _compared(bundle, folder / "run", valid, max_new_tokens)
        shown("exporting the adapter", None)
        bundle.export_adapter(folder / "adapter", state=folder / "run", force=True)
        write_card(folder / "adapter", bundle, state=folder / "run")
        return Run(folder, bundle, trained, comparisons, resumed)


def _refuse_others(folder: Path) -> None:
    """Refuse a folder that finetune did not write."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / RECORD).is_file():
        raise ConfigError(
            f"output {folder}",
            found="something that 'finetune' did not write",
            expected="a new folder, or the folder of an earlier run",
            fix="Choose another --output.",
        )


@contextlib.contextmanager
def _split(data: Data, eval_data: Data | None) -> Iterator[tuple[dict[str, Path], list[Path]]]:
    """Write training and validation examples as JSON Lines; also yield their source files.

    Errors that refer to a line of the source files are changed to refer to the user's row.
    """
    with contextlib.ExitStack() as stack:
        examples = stack.enter_context(as_file(data))
        if eval_data is not None:
            valid = stack.enter_context(as_file(eval_data))
            yield {"train": examples, "valid": valid}, [examples, valid]
            return
        content = examples.read_bytes().removeprefix(codecs.BOM_UTF8)
        lines = [line for line in content.splitlines() if line.strip()]
        count = len(lines) // _HELD_OUT or int(len(lines) > 1)
        held_out = set(random.Random(0).sample(range(len(lines)), count))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zoexport-")))
        parts = {"train": folder / "train.jsonl", "valid": folder / "valid.jsonl"}
        for name, path in parts.items():
            chosen = (
                line for at, line in enumerate(lines) if (at in held_out) == (name == "valid")
            )
            path.write_bytes(b"".join(line + b"\n" for line in chosen))
        yield {name: path for name, path in parts.items() if path.stat().st_size > 0}, [examples]


def _same(folder: Path, made_from: Mapping[str, Any]) -> bool:
    """Return whether ``folder`` contains a run with the same model, settings and data.

    Raises:
        ConfigError: the run has another model, other settings or other data.
    """
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except ValueError as error:
        raise StateError(
            str(folder / RECORD),
            found=f"no JSON ({error})",
            expected="what 'finetune' wrote",
            fix="Pass --overwrite to start over.",
        ) from error
    changed = [key for key in made_from if found.get(key) != made_from[key]]
    if changed:
        names = {"train": "training examples", "valid": "validation examples"}
        raise ConfigError(
            f"output {folder}",
            found="a run with other " + ", ".join(names.get(key, key) for key in changed),
            expected="the same to resume it",
            fix="Pass --overwrite to start over, or choose another --output.",
        )
    return True


def _argument(model: StrPath | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return a model argument that is valid in any working directory."""
    source = model_source(model, tokenizer)
    if not isinstance(source, str):
        return source.argument
    path = Path(source).expanduser()
    return str(path.resolve()) if path.exists() else source


def _fitting(
    model: str,
    target: str,
    method: str | None,
    settings: dict[str, Any],
    sources: Iterable[Path],
    phase: Progress,
) -> Path:
    """Return the cached bundle whose ``max_length`` fits the examples of ``sources``.

    Raises:
        DataError: an example cannot be used.
    """
    from zoexport.data.check import check

    folder = cached_bundle(model, method=method, target=target, settings=settings, progress=phase)
    bundle = Bundle.open(folder, trust=ANYONE)
    phase("checking the examples", None)
    longest = 0
    for source in sources:
        found = check(bundle, DataSource(source), loss=bundle.settings["loss"], limit=1)
        for problem in found["problems"]:
            raise DataError(**problem)
        if found["tokens"] is None:
            raise DataError(
                f"data {source}",
                found="no examples",
                expected="at least one example",
                fix="Check the file.",
            )
        longest = max(longest, found["tokens"]["longest"])
    context = bundle.manifest.get("generate", {}).get("context", _MOST_TOKENS) + 1
    length = min(-(-longest // _UNIT) * _UNIT, _MOST_TOKENS, context)
    if "max_length" in settings or length <= bundle.settings["max_length"]:
        return folder
    phase(Notice(f"max_length {length}: the longest example has {longest} tokens"), None)
    return cached_bundle(
        model,
        method=method,
        target=target,
        settings={**settings, "max_length": length},
        progress=phase,
    )


def _write(
    folder: Path, bundle: Path, files: Mapping[str, Path], made_from: Mapping[str, Any]
) -> None:
    """Write the bundle, the data and the record of a new run, in place of an earlier run."""
    with atomic_folder(folder / "bundle", replace=True) as into:
        shutil.copytree(bundle, into, copy_function=_link, dirs_exist_ok=True)
    with atomic_folder(folder / "data", replace=True) as into:
        for name, file in files.items():
            shutil.copyfile(file, into / f"{name}.jsonl")
    for earlier in ("run", "adapter"):
        shutil.rmtree(folder / earlier, ignore_errors=True)
    write_json(folder / RECORD, made_from)


def _link(source: str, target: str) -> None:
    """Hard-link a bundle's file, which never changes; copy it across file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _steps(bundle: Bundle, data: Path) -> int:
    """Return the default number of steps over the examples of ``data``."""
    with data.open("rb") as file:
        examples = sum(1 for _ in file)
    each = bundle.settings["batch_size"] * bundle.settings.get("gradient_accumulation_steps", 1)
    return min(max(math.ceil(_EPOCHS * examples / each), _LEAST_STEPS), _MOST_STEPS)


def _compared(
    bundle: Bundle, state: Path, valid: Path, max_new_tokens: int
) -> tuple[Comparison, ...]:
    """Complete the first validation prompts without and with the trained weights."""
    prompts = list(_prompts(bundle, state, valid))

    def completions(opened: Generator) -> list[str]:
        return [
            opened.generate(prompt, max_new_tokens=max_new_tokens).text.strip()
            for prompt, _, _ in prompts
        ]

    with generator(bundle) as opened:
        before = completions(opened)
    with generator(bundle, state=state) as opened:
        after = completions(opened)
    return tuple(
        Comparison(text, expected, *texts)
        for (_, text, expected), *texts in zip(prompts, before, after, strict=True)
    )


def _prompts(bundle: Bundle, state: Path, valid: Path) -> Iterator[tuple[Prompt, str, str]]:
    """Yield the first prompts of a file: model input, text to show, completion in the data."""
    with valid.open(encoding="utf-8-sig") as content:
        lines = list(itertools.islice(content, _SHOWN))
    examples = [json.loads(line) for line in lines]
    for one in examples:
        if "text" in one:
            words = one["text"].split()
            start = " ".join(words[:_FIRST_WORDS])
            yield Prompt(start), start, " ".join(words[_FIRST_WORDS:])
    others = [line for line, one in zip(lines, examples, strict=True) if "text" not in one]
    if not others:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(others)
        file.flush()
        read = prompts_of(Path(file.name))
    for line in read:
        prompt = prompt_of(line)
        expected = next(iter(line["answers"]), "")
        if prompt.messages:
            yield prompt, str(prompt.messages[-1].get("content", "")), expected
        else:
            yield asked(bundle, prompt.text, state=state), prompt.text, expected
