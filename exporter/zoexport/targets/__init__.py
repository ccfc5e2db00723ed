"""Targets; each folder here is one kind of engine, found through :data:`targets`."""

from zoexport.core.registry import Registry
from zoexport.core.types import Target

targets: Registry[Target] = Registry("target", __name__, "target")
