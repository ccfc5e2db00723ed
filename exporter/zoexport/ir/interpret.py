"""Interpretation: run a program of a training graph in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from zoexport.core.graph import LayerGraph, Stage, TrainingGraph


def interpret(
    graph: TrainingGraph, program: str, inputs: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Run one program.

    Args:
        graph: the training graph; its weights are supplied to the program.
        program: the program's name.
        inputs: every other input by name.

    Returns:
        The outputs by name.

    Raises:
        KeyError: an input is missing.
    """
    chosen = graph.programs[program]
    values = [
        graph.weights[value.name] if value.role == "weight" else inputs[value.name]
        for value in chosen.inputs
    ]
    with torch.no_grad():
        results = chosen.module(*values)
    return dict(zip((value.name for value in chosen.outputs), results, strict=True))


class Stages:
    """A split graph as a session runs it: stages forward, the output head on label positions, stages backward.

    Args:
        graph: after the passes; every weight has its values.
        slots: the values of the state slots by name.
        length: which programs, of ``graph.lengths``.
        scalars: what programs read that is no tensor of the model, by role (epsilon, seed, step).
        dropout: by slot of an adapter's second matrix, what its inputs are multiplied by; of the others, ones.
    """

    def __init__(
        self,
        graph: LayerGraph,
        slots: Mapping[str, torch.Tensor],
        length: int,
        scalars: Mapping[str, torch.Tensor] | None = None,
        dropout: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.graph = graph
        self.dropout = dropout or {}
        self.scalars = scalars or {}
        self.values = {**graph.weights, **slots}
        self.programs = {
            program.called: program
            for program in graph.programs.values()
            if program.length in (None, length)
        }

    def forward(self, tokens: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return the inputs of each stage, given ``tokens`` (rows, length)."""
        self.tokens = tokens
        reads: list[list[torch.Tensor]] = [[]]
        for stage in self.graph.stages[:-1]:
            reads.append([*self._run(stage.forward, stage, reads[-1]).values()])
        return reads

    def gradients(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        label_tokens: torch.Tensor,
        label_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One call of a first-order step.

        Args:
            tokens: int64 (rows, length).
            positions: int64 (M), flat, of the label entries; M at most ``graph.label_rows``.
            label_tokens: int64 (M). label_weights: float32 (M), d loss / d log-probability.

        Returns:
            The log-probabilities (M), and the gradient of every trained slot by name.
        """
        reads = self.forward(tokens)
        (hidden,) = reads[-1]
        width = hidden.shape[-1]
        filling = self.graph.label_rows - len(positions)
        pad = torch.nn.functional.pad
        rows = hidden.reshape(-1, width)[positions]
        found: dict[str, torch.Tensor] = {}
        head = self.graph.stages[-1]
        results = self._run(
            f"{head.forward}.backward",
            head,
            [
                pad(rows, (0, 0, 0, filling)),
                pad(label_tokens, (0, filling)),
                pad(label_weights, (0, filling)),
            ],
        )
        logprobs = results["label_logprobs"][: len(positions)]
        flat = torch.zeros_like(hidden).reshape(-1, width)
        (passed,) = self._passed(head.forward, results)
        flat.index_add_(0, positions, passed[: len(positions)])
        gradients = [flat.reshape(hidden.shape)]
        self._collect(head, results, found)
        for stage, read in zip(reversed(self.graph.stages[:-1]), reversed(reads[:-1]), strict=True):
            if stage.backward is None:
                break
            results = self._run(stage.backward, stage, [*read, *gradients])
            gradients = self._passed(stage.forward, results)
            self._collect(stage, results, found)
        return logprobs, found

    def _passed(self, family: str, results: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the gradients of what a stage reads from the one before."""
        inputs = self.programs[family].inputs
        return [results[value.name] for value in inputs if value.role == "activation"]

    @staticmethod
    def _collect(
        stage: Stage, results: dict[str, torch.Tensor], found: dict[str, torch.Tensor]
    ) -> None:
        for name, value in results.items():
            if name in stage.bind:
                found[stage.bind[name]] = value

    def _run(self, family: str, stage: Stage, given: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        program = self.programs[family]
        rest = iter(given)
        values = []
        for value in program.inputs:
            bound = stage.bind.get(value.name)
            if bound is not None:
                values.append(self.values[bound])
            elif value.role == "tokens":
                values.append(self.tokens)
            elif value.role == "dropout":
                slot = stage.bind[value.name.removeprefix("dropout.")]
                values.append(self.dropout.get(slot, torch.ones(value.sizes())))
            else:
                values.append(
                    self.scalars[value.role] if value.role in self.scalars else next(rest)
                )
        with torch.no_grad():
            results = program.module(*values)
        return dict(zip((value.name for value in program.outputs), results, strict=True))
