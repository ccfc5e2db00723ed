"""Core ML packages made by hand: functions of a few operations, converted and saved as the compiler saves them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# It says on every import which of its optional parts it could not load.
logging.getLogger("coremltools").setLevel(logging.CRITICAL)

import coremltools as ct  # noqa: E402
from coremltools.converters.mil.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import Function, types  # noqa: E402

from zoexport.targets.coreml.lower import write_package  # noqa: E402

FP16, FP32, INT32 = types.fp16, types.fp32, types.int32

Specs = Mapping[str, tuple[Sequence[int], Any]]
#: Builds the outputs of a function from its inputs, both by name.
Build = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def save(path: Path, functions: Mapping[str, tuple[Specs, Build]]) -> Path:
    """Save a package with these functions; inputs are (shape, type) by name.

    Without coremltools' passes what is built is what is saved: nothing is folded, fused or removed.
    """
    made = {}
    for name, (specs, build) in functions.items():
        inputs = {key: mb.placeholder(shape, dtype=kind) for key, (shape, kind) in specs.items()}
        with Function(inputs, opset_version=ct.target.iOS18) as function:
            built = build(function.inputs)
            function.set_outputs([mb.identity(x=value, name=key) for key, value in built.items()])
        made[name] = function
    return save_functions(path, made)


def save_functions(path: Path, functions: Mapping[str, Function]) -> Path:
    """Save a package with functions that are built."""
    write_package(path, functions)
    return path


def int4(values: NDArray[Any]) -> NDArray[Any]:
    """Codes from -8 to 7 as coremltools' int4."""
    return values.astype(np.int8).astype(types.np_int4_dtype)


def quantized(
    codes: NDArray[Any], scale: NDArray[Any], offset: NDArray[Any] | None = None, shared: str = ""
) -> Any:
    """A quantized weight of the function that is being built, stored once for all that name it ``shared``."""
    given = {} if offset is None else {"offset": offset}
    weight = mb.constexpr_blockwise_shift_scale(data=codes, scale=scale, **given)
    if shared:
        weight.op.data.op.weight_id = f"{shared}.codes"
        weight.op.scale.op.weight_id = f"{shared}.scale"
    return weight


def operation_kinds(package: Path, function: str) -> set[str]:
    """The kinds of operations that a function of a saved package has."""
    spec = ct.utils.load_spec(str(package)).mlProgram.functions[function]
    return {operation.type for operation in spec.block_specializations[spec.opset].operations}
