"""Write trajectories.json: runs of tiny bundles that every host repeats (docs/architecture.md, "Parity").

    PYTHONPATH=. python graphs/golden/regenerate_trajectories.py

The numbers come from the methods' references in plain PyTorch and float64, run freely from the bundle's initial values;
the slots of a zeroth-order run from its gradients alone. It refuses a working tree with changes, so that the recorded
commit is what made the file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from regenerate_rng import hexadecimal, write

from tests.support.compiled import Compiler
from zoexport.compiler.parity import load_reference
from zoexport.core import rng, tolerances
from zoexport.data.examples import Candidate, Example
from zoexport.ir.ops import zo_update
from zoexport.methods.prge import PrgeConfig
from zoexport.methods.reference.prge import PrgeReference
from zoexport.session import Bundle

OUTPUT = Path(__file__).parent / "trajectories.json"

MODEL = "llama_tied"
STEPS = 8
_COMMON = {"weights": "fp32", "lora.r": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "prge": {
        **_COMMON,
        "num_queries": 2,
        "batch_size": 2,
        "loss": "choices",
        "learning_rate": 0.01,
        "lr_scheduler_type": "cosine",
        "seed": 2**40 + 7,
    },
    "mebp": {
        **_COMMON,
        "batch_size": 1,
        "gradient_accumulation_steps": 3,
        "learning_rate": 0.01,
        "weight_decay": 0.01,
        "seed": 5,
    },
}


def make_examples() -> list[Example]:
    """Seven examples of unequal lengths with one or two labels, and two or three choices."""
    examples = []
    for number in range(7):
        prompt = [(7 * number + 3 * place) % 290 + 1 for place in range(3 + 2 * number)]
        candidates = []
        for choice in range(2 + number % 2):
            completion = [11 + choice, 40 + number][: 1 + number % 2]
            candidates.append(Candidate.predicting(prompt + completion, len(prompt)))
        examples.append(Example(candidates, number % 2))
    return examples


def rate(settings: dict[str, Any], step: int) -> float:
    """The learning rate of a step, as docs/noise.md has it."""
    share = step / STEPS
    shapes = {
        "constant": 1.0,
        "linear": 1 - share,
        "cosine": (1 + np.cos(np.pi * share)) / 2,
    }
    return float(settings["learning_rate"] * shapes[settings["lr_scheduler_type"]])


def batches(settings: dict[str, Any], examples: int) -> list[list[int]]:
    """The examples of every step: an endless stream of shuffled epochs, cut into updates."""
    size = settings["batch_size"] * settings["gradient_accumulation_steps"]
    stream = [
        int(index)
        for epoch in range(-(-STEPS * size // examples))
        for index in rng.permutation(settings["seed"], epoch, examples)
    ]
    return [stream[step * size : (step + 1) * size] for step in range(STEPS)]


def trajectory(bundle: Path, method: str, examples: list[Example]) -> dict[str, Any]:
    """One run of the reference."""
    opened = Bundle.open(bundle)
    manifest, settings = opened.manifest, opened.settings
    reference = load_reference(opened, None, lambda *_: None)
    trained = [slot for slot in manifest["state"] if slot["role"] == "trainable"]
    initial = reference.values()
    if "num_queries" in settings:
        _in_double(reference)
    losses, rates, gradients = [], [], []
    for step, batch in enumerate(batches(settings, len(examples))):
        learning_rate = rate(settings, step)
        taken = reference.step([examples[index] for index in batch], learning_rate)
        losses.append(taken["losses"])
        rates.append(np.float32(learning_rate))
        if "num_queries" in settings:
            gradients.append(np.array(taken["gradients"], np.float32))
    finished = reference.finished()
    if gradients:
        finished = _replayed(initial, trained, gradients, rates, settings["seed"])
    return {
        "method": method,
        "model": MODEL,
        "settings": {key: str(value) for key, value in SETTINGS[method].items()},
        "seed": f"{settings['seed']:016x}",
        "steps": STEPS,
        "batches": batches(settings, len(examples)),
        "losses": losses,
        "rates": hexadecimal(np.array(rates)),
        "eps": hexadecimal(np.array([settings.get("eps", 0)], np.float32))[0],
        "gradients": [hexadecimal(g) for g in gradients],
        "slots": {
            name: " ".join(hexadecimal(value.numpy().astype(np.float32)))
            for name, value in finished.items()
        },
    }


def _in_double(reference: PrgeReference) -> None:
    """Float32 would not give the same losses twice, and a projected gradient magnifies that by 1/(2 eps)."""
    reference.adapted.model.double()
    reference.frozen = {name: value.double() for name, value in reference.frozen.items()}
    reference.masters = {name: value.double() for name, value in reference.masters.items()}


def _replayed(
    slots: dict[str, torch.Tensor],
    trained: list[dict[str, Any]],
    gradients: list[Any],
    rates: list[Any],
    seed: int,
) -> dict[str, torch.Tensor]:
    """The slots after updates by these gradients, to the last bit."""
    number = torch.tensor([seed])
    for step, (g, learning_rate) in enumerate(zip(gradients, rates, strict=True)):
        for slot in trained:
            slots[slot["name"]] = zo_update(
                slots[slot["name"]],
                torch.from_numpy(g),
                torch.tensor([learning_rate]),
                number,
                torch.tensor([step + 1]),
                slot["tensor_id"],
            )
    return slots


def trajectories() -> dict[str, Any]:
    """Everything in the file except who wrote it."""
    examples = make_examples()
    compiler = Compiler()
    runs = [
        trajectory(compiler.bundle(MODEL, method, **settings), method, examples)
        for method, settings in SETTINGS.items()
    ]
    bounds = tolerances.bounds(PrgeConfig(activations="fp32"))
    return {
        "tolerances": {key: bounds[key] for key in (tolerances.LOSS, tolerances.STATE)},
        "examples": [example.as_dict() for example in examples],
        "trajectories": runs,
    }


if __name__ == "__main__":
    sys.exit(write(OUTPUT, trajectories()))
