"""Targets; each folder here is one kind of engine, found through :data:`targets`, or what several of them share."""

from zoexport.core.registry import Registry
from zoexport.core.types import Target

targets: Registry[Target] = Registry("target", __name__, "target")
engines: Registry[Target] = Registry("engine", __name__, "target")
"""Targets as another engine than their own runs them, by ``target/engine``."""


def with_engine(target: Target, engine: str | None) -> Target:
    """``target`` as the engine that the user chose runs it; itself where it has no such engine, which it refuses."""
    key = f"{target.name}/{engine}"
    return engines.get(key) if key in engines.names() else target
