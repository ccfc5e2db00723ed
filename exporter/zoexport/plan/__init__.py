"""What training will take, from a model's configuration alone: memory, disk, arithmetic, and what fits a budget."""

from zoexport.plan.estimate import PROCESSES
from zoexport.plan.run import plan_training

__all__ = ["PROCESSES", "plan_training"]
