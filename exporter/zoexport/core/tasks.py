"""Task of a model, as optimum's ``TasksManager`` lists the model's class."""

from __future__ import annotations

CAUSAL = "text-generation"
MASKED = "fill-mask"
FEATURES = "feature-extraction"
"""The task of models without a head, which are the bodies of all others."""


def task_of(kind: type) -> str | None:
    """The first of optimum's tasks that a class of transformers is loaded for; None of other classes."""
    from optimum.exporters.tasks import TasksManager

    try:
        return str(TasksManager.infer_task_from_model(kind))
    except ValueError:
        return None
