"""Training methods; each folder here is one, found through :data:`methods`."""

from zoexport.core.registry import Registry
from zoexport.core.types import Method

methods: Registry[Method] = Registry("method", __name__, "method")
