"""Registries that find their entries in the modules of a package, so that no list is edited."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Generic, TypeVar

from zoexport.core.errors import ConfigError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Named entries of one kind, registered by the modules of a package or of its sub-packages.

    Args:
        kind: what an entry is, for messages ("method", "target").
        package: the import package that holds the entries.
        module: the module of sub-packages, at any depth, that registers them. None: every module of the package itself
            is imported.
    """

    def __init__(self, kind: str, package: str, module: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._module = module
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str, entry: T) -> T:
        """Add an entry; a second one of the same name is a programming error."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._entries[name] = entry
        return entry

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._entries)

    def get(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            ConfigError: no such entry; the message lists the known names.
        """
        self._load()
        if name not in self._entries:
            known = ", ".join(self.names())
            raise ConfigError(
                f"{self.kind} {name!r}",
                found="no such name",
                expected=f"one of {known}",
                fix=f"Run 'zoexport {self.kind}s' for what each does.{nearest(name, self.names())}",
            )
        return self._entries[name]

    def _load(self) -> None:
        if self._loaded:
            return
        package = importlib.import_module(self._package)
        search = pkgutil.walk_packages if self._module else pkgutil.iter_modules
        for found in search(package.__path__, prefix=f"{self._package}."):
            if found.name.rpartition(".")[2] == self._module or not (found.ispkg or self._module):
                importlib.import_module(found.name)
        self._loaded = True  # last: where an import failed, the next call tries again
