"""Graphs of programs, run as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Interpreter


class InterpretedGraph(torch.nn.Module):
    """A graph that can be called. No Python code is written for it, as torch.fx does each time that a graph changes."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *arguments: Any) -> Any:
        """Run the graph; ``arguments`` are in the order of its placeholders."""
        return Interpreter(self, graph=self.graph).run(*arguments)
