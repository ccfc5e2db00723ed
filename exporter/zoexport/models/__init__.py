"""Resolution and loading of MODEL arguments, and the choice of target modules.

There is no table of architectures here: optimum determines the task of a model, transformers loads
it.
"""

from __future__ import annotations

from zoexport.models.blank import BlankModel, blank
from zoexport.models.experts import has_experts, is_routed, route_experts
from zoexport.models.load import LoadedModel, fingerprint, folder_of, load
from zoexport.models.original import load_original
from zoexport.models.quantizable import is_router, unquantized
from zoexport.models.shapes import shape_of
from zoexport.models.source import REGISTRY, ModelSource, resolve
from zoexport.models.targets import adapter_targets, is_left_out, linear_names
from zoexport.models.weights import WeightReader

__all__ = [
    "REGISTRY",
    "BlankModel",
    "LoadedModel",
    "ModelSource",
    "WeightReader",
    "adapter_targets",
    "blank",
    "fingerprint",
    "folder_of",
    "has_experts",
    "is_left_out",
    "is_routed",
    "is_router",
    "linear_names",
    "load",
    "load_original",
    "resolve",
    "route_experts",
    "shape_of",
    "unquantized",
]
