"""``python -m research.accelerator.run FOLDER RESULTS``: all runs of the comparisons, on a GPU where there is one.

An arm's runs are one :class:`Runs`: every rate with every seed. Where the best rate is at an end of those that were
tried, others follow beyond it. ``RESULTS/<comparison>.json`` is written after each arm; the same command goes on with
the arms that it has not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from research.accelerator import folder
from research.accelerator.arms import COMPARISONS, Comparison
from research.accelerator.llama import EMBEDDING, HEAD, Llama
from research.accelerator.runs import FirstOrder, Lane, Rounded, Runs, ZerothOrder
from research.accelerator.split import Split
from research.accelerator.tasks import Choices, Task, Text
from research.accelerator.trained import Adapters, Chosen, Everything, Integers
from research.support.arms import Arm
from research.support.rates import best_rate, beyond
from zoexport.core import int4
from zoexport.core.files import write_json
from zoexport.core.mask import read_mask
from zoexport.models.targets import adapter_targets
from zoexport.passes.lora_inject import drawn_a

_EXTENSIONS = 2
"""How often rates are added beyond an end."""


class Prepared:
    """A prepared folder's model and examples on a device; quantized models are made once."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.device = path, device
        self.facts = folder.read_facts(path)
        self._whole = AutoModelForCausalLM.from_pretrained(
            path / folder.MODEL, dtype=torch.float32
        ).requires_grad_(False)
        self.original = Llama.of(self._whole, device)
        self._tasks: dict[str, Task] = {}
        self._int4: Llama | None = None
        weights = {EMBEDDING, HEAD, *(f"{name}.weight" for name in self.linears())}
        self._quantized = [name for name in self.original.parameters if name in weights]

    def task(self, name: str) -> Task:
        """One of the two."""
        if name not in self._tasks:
            parts = folder.read_parts(self.path, name)
            self._tasks[name] = (
                Choices(parts, self.device, self.facts["choices"])
                if name == "films"
                else Text(parts, self.device)
            )
        return self._tasks[name]

    def linears(self, targets: str = "all-linear") -> list[str]:
        """Paths of linear layers."""
        return adapter_targets(self._whole, targets, "all")

    def quantized(self) -> Llama:
        """With int4 weights, as a bundle has them."""
        self._int4 = self._int4 or self.rounded(self.original, self._quantized)
        return self._int4

    def rounded(self, model: Llama, names: Sequence[str], bits: int = 4) -> Llama:
        """These weights quantized and dequantized."""
        found = dict(model.parameters)
        for name in names:
            weight = found[name].cpu()
            back = (
                int4.dequantize_int4(*int4.quantize_int4(weight))
                if bits == 4
                else int4.dequantize_int8(*int4.quantize_int8(weight))
            )
            found[name] = back.to(self.device)
        return dataclasses.replace(model, parameters=found)

    def chosen(self, mask: str) -> Chosen:
        """The elements of a mask beside the others in int4."""
        places = {
            name: place.to(self.device)
            for name, place in read_mask(self.path / f"{mask}.mask").places.items()
            if len(place)
        }
        parameters = dict(self.original.parameters)
        values = []
        for name, place in places.items():
            parameters[name] = parameters[name].clone()
            values.append(parameters[name].view(-1)[place])
            parameters[name].view(-1)[place] = 0
        model = dataclasses.replace(self.original, parameters=parameters)
        model = self.rounded(model, self._quantized)
        return Chosen(model, places, torch.cat(values).half().float())

    def adapters(self, config: Any) -> Adapters:
        """With A as ``lora_inject`` draws it, or along directions of activations."""
        rank = config.lora_r
        names = self.linears(config.lora_target_modules)
        if config.lora_init_weights == "activations":
            path = folder.directions_file(self.path, config.lora_target_modules, rank)
            first = load_file(path, device=str(self.device))
        else:
            inputs = [self.original.parameters[f"{name}.weight"].shape[1] for name in names]
            first = {
                name: drawn_a(number, (size, rank), seed=0).to(self.device)
                for number, (name, size) in enumerate(zip(names, inputs, strict=True))
            }
        first = {name: first[name] for name in names}
        return Adapters(self.quantized(), first, config.lora_alpha / rank)

    def runs(self, arm: Arm, comparison: Comparison, lanes: Sequence[Lane]) -> Runs:
        """Those of an arm, before their first step."""
        config = folder.config_of(arm, comparison)
        task = self.task(comparison.task)
        model = self.original
        if arm.method == "senszoq":
            return ZerothOrder(model, task, lanes, config, self.chosen(config.mask))
        if arm.method == "quzo":
            names = [f"{name}.weight" for name in self.linears()]
            bits = 4 if config.weights == "int4" else 8
            model = self.rounded(model, [EMBEDDING], bits)
            integers = Integers(model, names, bits)
            return Rounded(model, task, lanes, config, integers)
        if arm.method == "spzo":
            return Split(model, task, lanes, config)
        if config.trained == "weights":
            return ZerothOrder(model, task, lanes, config, Everything(model))
        if arm.method == "mebp":
            return FirstOrder(model, task, lanes, config, self.adapters(config))
        one_sided = arm.method == "fzoo"
        return ZerothOrder(model, task, lanes, config, self.adapters(config), one_sided=one_sided)


def measure(
    prepared: Prepared,
    comparison: Comparison,
    known: Mapping[str, Any],
    *,
    done: Callable[[list[dict[str, Any]]], None],
    may_begin: Callable[[], bool],
    steps: int | None = None,
) -> None:
    """Run a comparison's arms.

    Args:
        known: arms by name of method and settings, which are not run again.
        done: called with the arms so far.
        may_begin: asked before an arm, and before its rates are extended.
        steps: of the first arm, in place of the comparison's.
    """
    found: list[dict[str, Any]] = []
    planned = prepared.facts["planned"]
    budget = planned[folder.key_of(comparison.arms[0], comparison)]["flops"]
    budget *= steps or comparison.steps
    for arm in comparison.arms:
        key = folder.key_of(arm, comparison)
        if key in known:
            entry = {**known[key], "label": arm.label}
        elif may_begin():
            entry = _arm(
                prepared, comparison, arm, round(budget / planned[key]["flops"]), may_begin
            )
            entry |= {"planned": planned[key], "key": key}
        else:
            continue
        found.append(entry)
        done(found)


def _arm(
    prepared: Prepared,
    comparison: Comparison,
    arm: Arm,
    steps: int,
    may_begin: Callable[[], bool],
) -> dict[str, Any]:
    """All runs of an arm; further rates where the best is at an end."""
    runs: list[dict[str, Any]] = []
    entry: dict[str, Any] = {**dataclasses.asdict(arm), "rates": list(arm.rates)}
    more = list(arm.rates)
    begin = time.monotonic()
    for extension in range(_EXTENSIONS + 1):
        if extension and not may_begin():
            break
        lanes = [Lane(rate, seed) for seed in comparison.seeds for rate in more]
        untrained, trained = _trained(prepared, comparison, arm, lanes, steps)
        entry["untrained"] = untrained
        runs += trained
        entry["rates"] = sorted({run["rate"] for run in runs})
        best = best_rate(runs, lambda run: run["points"][-1]["loss"])
        following = beyond(entry["rates"], best)
        if best is None or following is None:
            break
        more = [following, following * following / best]
    return entry | {"runs": runs, "seconds": round(time.monotonic() - begin, 1)}


def _trained(
    prepared: Prepared, comparison: Comparison, arm: Arm, lanes: Sequence[Lane], steps: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """What the untrained model gives on the test, and of each lane what ``research.learning`` keeps of a run."""
    runs = prepared.runs(arm, comparison, lanes)
    loss, right = runs.evaluated("test")
    untrained = {"loss": loss[0], "accuracy": right[0]}
    found: list[dict[str, Any]] = [
        {"rate": lane.rate, "seed": lane.seed, "seconds_per_step": None, "points": [], "test": None}
        for lane in lanes
    ]
    points = {-(-steps * (number + 1) // comparison.points) for number in range(comparison.points)}
    for step in range(1, steps + 1):
        runs.step()
        if step not in points:
            continue
        losses, rights = runs.evaluated("validation")
        for run, loss_of, right_of in zip(found, losses, rights, strict=True):
            finite = math.isfinite(loss_of)
            values = (loss_of, right_of) if finite else (None, None)
            run["points"].append({"steps": step, "loss": values[0], "accuracy": values[1]})
    for run, loss_of, right_of in zip(found, *runs.evaluated("test"), strict=True):
        if run["points"][-1]["loss"] is not None:
            run["test"] = {"loss": loss_of, "accuracy": right_of}
    return untrained, found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs of many rates and seeds side by side.")
    parser.add_argument("folder", type=Path, help="what prepare wrote")
    parser.add_argument("results", type=Path, help="a folder for the figures")
    parser.add_argument("--names", default=",".join(COMPARISONS), help="comparisons, in this order")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no arm begins")
    parser.add_argument("--steps", type=int, help="of the first arm, for a short run")
    chosen = parser.parse_args(arguments)
    begin = time.monotonic()

    def minutes() -> float:
        return (time.monotonic() - begin) / 60

    torch.backends.cuda.matmul.allow_tf32 = False
    prepared = Prepared(chosen.folder, torch.device(chosen.device))
    chosen.results.mkdir(parents=True, exist_ok=True)
    cards = torch.cuda.get_device_name() if chosen.device.startswith("cuda") else "CPU"
    known: dict[str, Any] = {}
    for path in chosen.results.glob("*.json"):
        with contextlib.suppress(ValueError):
            known |= {arm["key"]: arm for arm in json.loads(path.read_text())["arms"]}
    for name in chosen.names.split(","):
        comparison = COMPARISONS[name]

        def done(found: list[dict[str, Any]], name: str = name) -> None:
            last = found[-1]
            known[last["key"]] = last
            sys.stderr.write(
                f"{minutes():5.1f} min  {name}: {last['label']}, {last['seconds']} s\n"
            )
            today = datetime.date.today().isoformat()
            device = {"device": cards, "torch": torch.__version__, "date": today}
            write_json(chosen.results / f"{name}.json", {"arms": found, "device": device})

        measure(
            prepared,
            comparison,
            known,
            done=done,
            may_begin=lambda: minutes() < chosen.minutes,
            steps=chosen.steps,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
