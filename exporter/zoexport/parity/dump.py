"""What ``parity --dump`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from zoexport.data import Example


def dump_step(
    folder: Path,
    step: int,
    batch: list[Example],
    sides: dict[str, tuple[dict[str, Any], dict[str, np.ndarray]]],
    settings: dict[str, Any],
) -> None:
    """One file a side: what went into the step and what came out, by name.

    Gradients are the projected ones of a zeroth-order step, and those of every slot of a first-order one.
    """
    inputs: dict[str, np.ndarray] = {
        "learning_rate": np.array([settings["lr"]]),
        **({"epsilon": np.array([settings["eps"]])} if "eps" in settings else {}),
        "targets": np.array([example.target for example in batch]),
    }
    for row, example in enumerate(batch):
        for number, candidate in enumerate(example.candidates):
            inputs[f"tokens.{row}.{number}"] = np.array(candidate.tokens)
            inputs[f"labels.{row}.{number}"] = np.array(candidate.labels)
    for side, (result, noise) in sides.items():
        gradients = result["gradients"]
        tensors = {
            **inputs,
            "losses": np.array(result["losses"]),
            **(
                {f"gradient.{name}": value for name, value in gradients.items()}
                if isinstance(gradients, dict)
                else {"gradients": np.array(gradients)}
            ),
            **{f"noise.{name}": value for name, value in noise.items()},
            **{f"before.{name}": value for name, value in result["before"].items()},
            **{f"after.{name}": value for name, value in result["after"].items()},
        }
        (folder / f"step-{step:04d}.{side}.safetensors").write_bytes(save(tensors))
