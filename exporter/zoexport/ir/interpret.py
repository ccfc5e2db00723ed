"""Interpretation: run a program of a training graph in plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from zoexport.core.types import TrainingGraph


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
