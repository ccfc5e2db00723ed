"""Targets, found through :data:`targets`: one folder for each, and modules that several of them share."""

from zoexport.core.registry import Registry
from zoexport.core.types import Target

targets: Registry[Target] = Registry("target", __name__, "target")
