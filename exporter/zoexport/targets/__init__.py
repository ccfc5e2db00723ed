"""Targets, found through :data:`targets`: a folder for each engine or target, and modules that several share."""

from zoexport.core.registry import Registry
from zoexport.core.target import Target

targets: Registry[Target] = Registry("target", __name__, "target")
