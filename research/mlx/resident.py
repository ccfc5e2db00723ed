"""A MeBP step in MLX alone, with everything in memory; ``measure`` runs this file with a BUNDLE.

What a program does that loads a model and trains it: all weights are evaluated before the step and stay, and so does
what each stage was given. It runs the functions of an ios-mlx bundle as any host of MLX can, by the manifest
(docs/formats.md). Nothing of torch is loaded, so that the process is MLX's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

Arrays = Mapping[str, mx.array]


class ResidentStep:
    """One row's loss and the gradient of every adapter.

    Args:
        bundle: of target ios-mlx and method mebp, with one row in a call.
    """

    def __init__(self, bundle: Path) -> None:
        self.manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
        self.values: dict[str, mx.array] = {}
        for name in (self.manifest["weights"]["file"], "adapter.safetensors"):
            loaded: Any = mx.load(str(bundle / name))
            self.values |= loaded
        mx.eval(self.values)
        files = {program["file"] for program in self.manifest["programs"]}
        self.functions: dict[str, Any] = {
            file: mx.import_function(str(bundle / file)) for file in files
        }

    def run(self, tokens: Sequence[int]) -> tuple[float, dict[str, mx.array]]:
        """The mean loss over the tokens that follow each one, and gradients by slot.

        Args:
            tokens: one more than the length of a row.
        """
        *layers, head = self.manifest["stages"]
        length = self.manifest["lengths"][-1]
        passed = [[mx.array([list(tokens[:-1])], dtype=mx.int64)]]
        for stage in layers:
            passed.append(self._call(stage, "forward", length, activations=passed[-1]))
        labels = mx.array(list(tokens[1:]), dtype=mx.int64)
        loss, gradient, found = self._head(head, passed[-1][0], labels)
        gradients = [gradient]
        for stage, given in zip(reversed(layers), reversed(passed[:-1]), strict=True):
            if stage["backward"] is None:
                break
            made = self._call(
                stage, "backward", length, activations=given, output_gradients=gradients
            )
            program = self._program(stage["backward"], length)
            gradients = []
            for value, array in zip(program["outputs"], made, strict=True):
                if value["role"] == "state_gradient":
                    found[stage["bind"][value["name"]]] = array
                else:
                    gradients.append(array)
        return loss, found

    def _head(
        self, stage: dict[str, Any], hidden: mx.array, labels: mx.array
    ) -> tuple[float, mx.array, dict[str, mx.array]]:
        """Some label rows at a time: the loss, the gradient of ``hidden``, and those of the head's own slots."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        chunk, count = self.manifest["label_rows"], labels.shape[0]
        loss, parts = 0.0, []
        found: dict[str, mx.array] = {}
        program = self._program(stage["backward"], None)
        for first in range(0, count, chunk):
            here = min(chunk, count - first)
            filling = chunk - here
            weights = mx.full((here,), -1.0 / count)
            made = self._call(
                stage,
                "backward",
                None,
                activations=[mx.pad(rows[first : first + here], [(0, filling), (0, 0)])],
                label_tokens=mx.pad(labels[first : first + here], (0, filling)),
                label_weights=mx.pad(weights, (0, filling)),
            )
            for value, array in zip(program["outputs"], made, strict=True):
                if value["role"] == "label_logprobs":
                    loss -= float(mx.sum(array[:here])) / count
                elif value["role"] == "input_gradient":
                    parts.append(array[:here])
                elif value["role"] == "state_gradient":
                    slot = stage["bind"][value["name"]]
                    found[slot] = found[slot] + array if slot in found else array
        gradient = mx.concatenate(parts).reshape(hidden.shape)
        mx.eval(gradient, found)
        return loss, gradient, found

    def _program(self, family: str, length: int | None) -> dict[str, Any]:
        return next(
            program
            for program in self.manifest["programs"]
            if program["family"] == family and program.get("length") == length
        )

    def _call(
        self,
        stage: dict[str, Any],
        direction: str,
        length: int | None,
        *,
        activations: Sequence[mx.array],
        output_gradients: Sequence[mx.array] = (),
        **labels: mx.array,
    ) -> list[mx.array]:
        program = self._program(stage[direction], length)
        rest = {"activation": iter(activations), "output_gradient": iter(output_gradients)}
        rest["tokens"] = rest["activation"]
        named = {}
        for value in program["inputs"]:
            name, role = value["name"], value["role"]
            if name in stage["bind"]:
                named[name] = self.values[stage["bind"][name]]
            else:
                named[name] = labels[role] if role in labels else next(rest[role])
        made: list[mx.array] = self.functions[program["file"]](**named)
        mx.eval(made)
        return made


def main(bundle: Path) -> None:
    """A step over a row of the longest length; its loss is printed."""
    step = ResidentStep(bundle)
    vocabulary = step.manifest["model"]["vocab_size"]
    length = step.manifest["lengths"][-1]
    loss, _ = step.run([7919 * place % vocabulary for place in range(length + 1)])
    sys.stdout.write(f"{loss}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
