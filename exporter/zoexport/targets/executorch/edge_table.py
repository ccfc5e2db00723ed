"""ExecuTorch's table of the types that its operators take: it reads it when it is imported, with a parser in Python."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import yaml

from zoexport.core.replaced import replaced

_READER = "executorch.exir.dialects.edge._ops"


@contextlib.contextmanager
def read_by_libyaml() -> Iterator[None]:
    """While this is open, importing ExecuTorch parses the table in C: in a tenth of a second instead of one."""
    quick = getattr(yaml, "CSafeLoader", None)
    if quick is None or _READER in sys.modules:
        yield
        return
    try:
        from ruamel.yaml import YAML
    except ImportError:  # so there is no ExecuTorch either
        yield
        return
    with replaced((YAML, "load", lambda _, text: yaml.load(text, Loader=quick))):
        yield
