"""``python -m research.accelerator.prepare FOLDER``: everything that ``run`` needs, which may be elsewhere.

Weights, tokens, masks, directions of activations, and the operations that ``zoexport plan`` counts of each arm's step.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from research.accelerator import arms, folder
from research.accelerator.llama import Llama
from research.accelerator.tasks import Part
from research.support.arms import Arm
from research.support.command import exit_status
from zoexport import models
from zoexport.calibration import calibration_rows
from zoexport.compiler.directions import measure
from zoexport.core.progress import Progress
from zoexport.data import corpus, samples
from zoexport.data.examples import Example, read_examples
from zoexport.data.text_entry import tokenizer_of
from zoexport.tools.plan import plan_training
from zoexport.tools.sensitivity import make_mask

MODEL = "smollm2-135m"
_MASKS = {arms.CHOSEN: "sensitive", arms.RANDOM: "random"}


def prepare(model: str, output: Path, dtype: str, progress: Progress) -> None:
    """Write the folder; what is there already is left as it is.

    Args:
        model: a MODEL argument. output: the folder.
        dtype: that weights are rounded to before anything is made of them: float32, or bfloat16 for half the size.
        progress: called with what is being done.

    Raises:
        ZoExportError: the model or a text cannot be read.
    """
    output.mkdir(parents=True, exist_ok=True)
    source = models.resolve(model)
    loaded = models.load(source)
    whole: Any = loaded.model
    Llama.of(whole, torch.device("cpu"))  # refuses what runs could not call
    if not (output / folder.MODEL).exists():
        progress("copying the model", None)
        rounded = copy.deepcopy(whole).to(getattr(torch, dtype))
        rounded.save_pretrained(output / folder.MODEL)
    choices = _examples(output, loaded, progress)
    for name, kind in _MASKS.items():
        path = output / f"{name}.mask"
        if not path.exists():
            progress(f"choosing weights: {kind}", None)
            make_mask(
                model,
                data=None,
                output=path,
                settings={"kind": kind},
                device_map=None,
                force=False,
                progress=progress,
            )
    for targets, rank in _first_matrices():
        path = folder.directions_file(output, targets, rank)
        if not path.exists():
            progress(f"directions of activations, {targets}", None)
            names = models.adapter_targets(loaded.model, targets, "all")
            rows = calibration_rows(loaded, 256, None)
            save_file(measure(loaded, dict.fromkeys(names, rank), rows, seed=0), path)
    planned = folder.read_facts(output)["planned"] if (output / folder.FACTS).exists() else {}
    for comparison in arms.COMPARISONS.values():
        for arm in comparison.arms:
            key = folder.key_of(arm, comparison)
            if key not in planned:
                progress(f"counting operations, {arm.label}", None)
                planned[key] = _planned(arm, comparison, source.argument, progress)
    # Of the model that is there, which an earlier call may have written.
    stored = json.loads((output / folder.MODEL / "config.json").read_text(encoding="utf-8"))
    about = {
        "name": source.name,
        "sha256": models.fingerprint(source),
        "weights": stored["dtype"],
    }
    folder.write_facts(output, {"model": about, "choices": choices, "planned": planned})


def _first_matrices() -> set[tuple[str, int]]:
    """Targets and ranks of the adapters that ask for directions."""
    found = set()
    for comparison in arms.COMPARISONS.values():
        for arm in comparison.arms:
            config: Any = folder.config_of(arm, comparison)
            if config.measures_directions:
                found.add((config.lora_target_modules, config.lora_r))
    return found


def _examples(output: Path, loaded: Any, progress: Progress) -> list[int]:
    """Write both tasks' examples; returns the tokens of the films' choices."""
    progress("tokenizing", None)
    choices: list[int] = []
    for task, length, files in (
        ("films", 64, samples.sentences()),
        ("text", 256, corpus.rows(256)),
    ):
        with tokenizer_of(loaded, length) as tokenizer:
            rows = {path.stem: read_examples(tokenizer, path) for path in (files.train, files.test)}
        for examples in rows.values():
            for example in examples:
                for choice in _choices(example) if task == "films" else []:
                    if choice not in choices:
                        choices.append(choice)
        validated = folder.VALIDATED[task]
        parts = {
            "train": rows["train"][:-validated],
            "validation": rows["train"][-validated:],
            "test": rows["test"][: folder.TESTED[task]],
        }
        folder.write_parts(
            output, task, {name: _part(part, choices, length) for name, part in parts.items()}
        )
    return choices


def _choices(example: Example) -> list[int]:
    """The one token of each candidate."""
    return [next(label for label in one.labels if label >= 0) for one in example.candidates]


def _part(examples: Sequence[Example], choices: Sequence[int], length: int) -> Part:
    tokens = torch.zeros(len(examples), length, dtype=torch.int64)
    lengths, right = [], []
    for row, example in zip(tokens, examples, strict=True):
        one = example.candidates[example.target]
        # What is behind the last label is read by nothing.
        count = 1 + max(place for place, label in enumerate(one.labels) if label >= 0)
        if len(example.candidates) == 1:
            count += 1
        kept = [*one.tokens, one.labels[-1]][:count]
        row[: len(kept)] = torch.tensor(kept)
        lengths.append(len(kept))
        several = len(example.candidates) > 1
        right.append(choices.index(_choices(example)[example.target]) if several else 0)
    return Part(tokens, torch.tensor(lengths), torch.tensor(right))


def _planned(
    arm: Arm, comparison: arms.Comparison, model: str, progress: Progress
) -> dict[str, int]:
    """``flops`` and ``bytes`` of a step."""
    settings = {**comparison.common, **arm.settings}
    settings.pop("mask", None)
    batch = int(settings["batch_size"])
    found = plan_training(
        model,
        method=arm.method,
        target="host",
        settings=settings,
        labels=batch * (2 if comparison.task == "films" else 255),
        progress=progress,
    )
    return {"flops": found["flops_per_step"], "bytes": found["bytes_per_step"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="What runs on an accelerator need, in a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    chosen = parser.parse_args(arguments)
    return exit_status(lambda clock: prepare(chosen.model, chosen.folder, chosen.dtype, clock))


if __name__ == "__main__":
    sys.exit(main())
